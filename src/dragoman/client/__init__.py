"""The other half of the protocol: what an agent calls other agents with."""

from dragoman.client.client import Client, Remote, Result, Stream
from dragoman.client.engine import Engine, Unreachable

__all__ = ("Client", "Engine", "Remote", "Result", "Stream", "Unreachable")
