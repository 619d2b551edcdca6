"""Webhooks: their delivery, and the receiver on the other side."""
