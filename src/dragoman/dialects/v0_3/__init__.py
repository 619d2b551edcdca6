"""A2A 0.3, in its two forms: that of JSON-RPC, and that of its proto (HTTP+JSON and gRPC)."""
