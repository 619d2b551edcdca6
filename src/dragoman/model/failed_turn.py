"""What a turn that failed, was lost or runs again leaves in the log, for operators alone."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from dragoman.model import clock
from dragoman.model.events import Private

FAILED_TURN = "failed_turn"
"""The kind of its private entry. The entry has the turn 0, so that versions that do not know the
kind pass over it when they run the turn again."""


class FailedTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one attempt of a turn went wrong."""

    turn: int
    """The number of the message that the turn worked on."""
    attempt: int
    worker: str
    reason: str
    """`error` (the handler raised), `user_error` (it raised UserError), `invalid` (its output was
    wrong), `deadline`, `lost` (the worker stopped renewing its lease), `shutdown` (the worker was
    stopped), or `store` (its output could not be stored)."""
    text: str
    """The same as a sentence."""
    correlation: str = ""
    """The id in the log of the process and in the text for the client."""
    traceback: str = ""
    """Where it happened, or where the handler was. Secrets are masked, and a long one is
    shortened in the middle."""


_decode = msgspec.json.Decoder(FailedTurn).decode


def failed_turn_entry(failed: FailedTurn) -> Private:
    """The private entry of a failed turn."""
    return Private(kind=FAILED_TURN, value=Raw(msgspec.json.encode(failed)), at=clock.now())


def failed_turn(event: object) -> FailedTurn | None:
    """The failed turn of an entry; None if it is another entry, or if its value is sealed."""
    if not isinstance(event, Private) or event.kind != FAILED_TURN or event.sealed:
        return None
    try:
        return _decode(event.value)
    except msgspec.MsgspecError:
        return None
