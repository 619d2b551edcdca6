"""Webhooks: the sender, and the receiver for clients."""
