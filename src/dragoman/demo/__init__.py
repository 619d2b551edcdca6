"""`dragoman demo`: three agents work together, one of them is killed, and a fourth one is paid."""
