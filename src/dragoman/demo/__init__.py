"""Three agents at work, and one of them killed: `dragoman demo`."""
