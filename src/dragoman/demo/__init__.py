"""`dragoman demo`: three agents work together, and one of them is killed."""
