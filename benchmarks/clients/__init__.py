"""One file per client; each is run as `python -m benchmarks.clients.<name> URL`."""
