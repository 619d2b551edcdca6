"""The other half of the protocol: what an agent calls other agents with."""

from dragoman.client.behalf import Behalf
from dragoman.client.client import Client, Options, Saying
from dragoman.client.credentials import (
    Certificate,
    Login,
    Need,
    Secret,
    TokenProvider,
    Withheld,
)
from dragoman.client.deadline import DeadlineExceeded
from dragoman.client.dialling import NotAllowed
from dragoman.client.discovery import Shelf
from dragoman.client.download import fetch
from dragoman.client.engine import Body, Engine, Request, Response, Sockets, Unreachable
from dragoman.client.inbox import Inbox
from dragoman.client.limits import Limits, TooLarge
from dragoman.client.oauth import Invitation, OAuth
from dragoman.client.pins import Origins, Pins
from dragoman.client.remote import Remote
from dragoman.client.result import Result
from dragoman.client.stream import Stream
from dragoman.client.upload import File
from dragoman.security.signing import Trust, Unverified

__all__ = (
    "Behalf",
    "Body",
    "Certificate",
    "Client",
    "DeadlineExceeded",
    "Engine",
    "File",
    "Inbox",
    "Invitation",
    "Limits",
    "Login",
    "Need",
    "NotAllowed",
    "OAuth",
    "Options",
    "Origins",
    "Pins",
    "Remote",
    "Request",
    "Response",
    "Result",
    "Saying",
    "Secret",
    "Shelf",
    "Sockets",
    "Stream",
    "TokenProvider",
    "TooLarge",
    "Trust",
    "Unreachable",
    "Unverified",
    "Withheld",
    "fetch",
)
