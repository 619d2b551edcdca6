"""One file per server; each is run as `python -m benchmarks.servers.<name> PORT`."""
