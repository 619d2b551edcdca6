"""What each foreign server offers, so that nothing is left out in silence.

Everything that is not in here is offered by all of them. `yes` and `no` say whether this one does
so, or minds; an error is what our client raises. The tests ask for every row, and say what
happens in either case.
"""

from __future__ import annotations

import re

from dragoman.client import Unreachable
from dragoman.model import errors

Offer = bool | type[Exception]
OTHER: dict[str, type[Exception]] = {"Unreachable": Unreachable, "TimeoutError": TimeoutError}
"""What is raised and is no answer."""

TABLE = """
what                       reference             javascript                fasta2a
-- messages
answers without a task     yes                   yes                       no (1)
answers at once            yes                   yes                       yes
asks in its status         yes                   yes                       no (2)
says why it failed         yes                   yes                       yes
fails when it crashes      InternalError (3)     yes                       yes
... in a stream            InternalError (3)     yes                       yes
goes on with a task        yes                   yes                       no (4)
works on unheard           yes                   yes                       yes
keeps what is with a part  yes                   yes                       yes
keeps null inside of data  yes                   yes                       yes
takes null for data        yes                   InvalidAgentResponse (5)  yes
-- tasks
lists                      yes                   yes                       UnsupportedOperation
leaves the history out     yes                   yes                       no
streams beyond a question  yes                   yes                       Unreachable (6)
cancels before it answers  yes                   yes                       no (7)
ends a task only once      yes                   yes                       yes
has an extended card       yes                   yes                       InternalError (8)
-- webhooks
has webhooks               yes                   yes                       InternalError (8)
finds a webhook by its id  yes                   yes                       no (8)
a webhook that is gone     TaskNotFound          TaskNotFound              InternalError (8)
lists webhooks             yes                   yes                       InternalError (8)
deletes webhooks           yes                   yes                       InternalError (8)
pushes events              yes                   yes                       no (8)
pushes when canceled       yes                   yes                       no (8)
says who pushes            yes                   yes                       no (8)
-- mistakes
a reply to nothing         TaskNotFound          TaskNotFound              no (4)
a stream to nothing        TaskNotFound          TaskNotFound              no (4)
a reply to what has ended  UnsupportedOperation  UnsupportedOperation      no (4)
another context            InvalidParams         InvalidParams             no (4)
a look at what has ended   UnsupportedOperation  UnsupportedOperation      no (9)
canceling what has ended   TaskNotCancelable     TaskNotCancelable         no (7)
canceling twice            TaskNotCancelable     no                        no (7)
a message without parts    InvalidParams         InvalidParams             InvalidAgentResponse (10)
says which field is wrong  yes                   no                        no
a page too large           InvalidParams         InvalidParams             UnsupportedOperation

(1) Its workers support only tasks.
(2) Its storage keeps no messages in a status: the agent's messages are in the history.
(3) The response is the executor's exception; the task itself fails.
(4) It supports no follow-ups: a message to a task starts a new task in the same context.
(5) It reads null as absent, and returns a part without content.
(6) It ends the streams of a task that asks for input, and each new one.
(7) A worker handles a cancel like any other work; for an ended task, it returns the task.
(8) It does not have these 1.0 methods, and returns HTTP 500 for unknown methods.
(9) The stream sends the task and ends.
(10) It does not check the message; our client finds the error in the history.
"""

OLDER = """
what                       reference-0.3         javascript-0.3        reference-0.2
-- messages
answers without a task     yes                   yes                   yes
answers at once            yes                   yes                   no (11)
asks in its status         yes                   yes                   yes
says why it failed         yes                   yes                   yes
fails when it crashes      InternalError (13)    yes (12)              InternalError (13)
... in a stream            TimeoutError (13)     yes (12)              TimeoutError (13)
goes on with a task        yes                   yes                   yes
works on unheard           yes                   yes                   TimeoutError (14)
keeps what is with a part  yes                   yes                   yes
keeps null inside of data  yes                   yes                   yes
takes null for data        yes (15)              yes (15)              yes (15)
-- tasks
lists                      UnsupportedOperation  UnsupportedOperation  UnsupportedOperation
leaves the history out     no (16)               no (16)               no (16)
streams beyond a question  yes (17)              yes (17)              yes (17)
cancels before it answers  yes                   yes                   yes
ends a task only once      yes                   yes                   no (18)
has an extended card       yes                   yes                   yes
-- webhooks
has webhooks               yes                   yes                   yes
finds a webhook by its id  no (19)               yes                   no (19)
a webhook that is gone     no (19)               InternalError (20)    no (19)
lists webhooks             yes                   yes                   yes
deletes webhooks           yes                   yes                   yes
pushes events              no (21)               no (21)               no (21)
pushes when canceled       no (22)               yes                   no (22)
says who pushes            no (23)               no (23)               no (23)
-- mistakes
a reply to nothing         TaskNotFound          TaskNotFound          TaskNotFound
a stream to nothing        TaskNotFound          TaskNotFound          TaskNotFound
a reply to what has ended  InvalidParams         InvalidRequest        InvalidParams
another context            InvalidParams         no (24)               InvalidParams
a look at what has ended   no (17)               no (17)               no (17)
canceling what has ended   TaskNotCancelable     TaskNotCancelable     no (18)
canceling twice            TaskNotCancelable     TaskNotCancelable     no (18)
a message without parts    InternalError         InvalidParams (25)    InternalError
says which field is wrong  no                    no                    no
a page too large           UnsupportedOperation  UnsupportedOperation  UnsupportedOperation

(11) A send always waits for the end of the turn.
(12) The failed task has another id than the task that crashed, which stays working.
(13) The response is the executor's exception; a stream breaks off. The task never changes again.
(14) It stops the work when the first stream breaks, and the task stays working forever.
(15) Inside an object, with a mark in the metadata: before 1.0, data must be an object.
(16) It reads 0 as no limit; javascript-0.3 reads an absent number as 0.
(17) Our client polls before 1.0 and does not subscribe. The reference does not send the task
    first, sends nothing for a task that asks or was canceled, and adds each chunk to the task
    again for each subscriber; javascript-0.3 ends the stream when the task asks.
(18) It cancels a task that has already ended.
(19) It returns the first one for every id.
(20) It has no other error for this.
(21) It posts the whole task, as its version requires.
(22) It posts only events that follow a message.
(23) It sends the token, but no credentials.
(24) It continues the task that the message names.
(25) It refuses the empty id; it would accept a message without parts.
"""

HTTP = """
what                       reference-0.3-HTTP+JSON  javascript-0.3-HTTP+JSON
keeps what is with a part  yes                      no (26)
takes null for data        yes                      no (26)
lists                      InternalError (27)       MethodNotFound (28)
leaves the history out     no                       yes (29)
lists webhooks             InternalError (27)       yes
deletes webhooks           MethodNotFound (28)      yes
a stream to nothing        Unreachable (30)         InternalError (31)
a page too large           InternalError (27)       MethodNotFound (28)

(26) It drops the names of files and the metadata of parts, with the mark of (15). Its agents get
    the bytes of files as base64, as in the reference.
(27) It has a path for this, but no implementation.
(28) It has no path for this.
(29) It cannot distinguish 0 from an absent number, and then returns no history.
(30) It closes a stream that cannot start, without an error.
(31) It returns this error for everything that prevents a stream.
"""

GRPC = """
what                       reference-0.3-GRPC   javascript-0.3-GRPC
... in a stream            InternalError (32)   yes
keeps what is with a part  yes                  no (26)
keeps null inside of data  yes                  no (33)
takes null for data        yes                  no (26)
has an extended card       no (34)              yes
lists webhooks             MethodNotFound (35)  yes
deletes webhooks           MethodNotFound (35)  yes
a reply to what has ended  InvalidParams        InvalidParams (36)

(32) Only here does a stream get the error.
(33) It becomes 0.
(34) It has only a public card.
(35) The method exists, and returns that it is not implemented.
(36) gRPC has no other status for an invalid request.
"""
"""Where it is not the same over every binding."""


def _read(*tables: str) -> dict[str, dict[str, Offer]]:
    found: dict[str, dict[str, Offer]] = {}
    for table in tables:
        head, *rows = (
            re.split(r"\s{2,}", line) for line in table.split("\n\n")[0].strip().split("\n")
        )
        for what, *cells in rows:
            if not what.startswith("--"):
                offers = zip(head[1:], map(_offer, cells), strict=True)
                found.setdefault(what, {}).update(offers)
    return found


def _offer(cell: str) -> Offer:
    word = cell.split(" ")[0]
    if word in ("yes", "no"):
        return word == "yes"
    found: type[Exception] = OTHER.get(word) or getattr(errors, word)
    return found


OFFERS = _read(TABLE, OLDER, HTTP, GRPC)
