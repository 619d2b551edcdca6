"""Two booking agents at work: `make demo`."""
