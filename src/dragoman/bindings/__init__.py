"""The bindings decode requests into operations and encode the responses: JSON-RPC, HTTP+JSON,
gRPC, server-sent events, the card."""
