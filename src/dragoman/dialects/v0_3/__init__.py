"""A2A 0.3 in its two forms: the JSON-RPC form, and the proto form (HTTP+JSON and gRPC)."""
