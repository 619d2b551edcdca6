"""Bytes to operation and back: JSON-RPC, HTTP+JSON, server-sent events, the card."""
