"""Benchmarks of dragoman and other A2A servers and clients: the same agent, the same load."""
