"""dragoman beside its peers: the same agent, the same load, the server's own CPU."""
