"""What each foreign server offers, so that nothing is left out in silence.

Everything that is not in here is offered by all of them. `yes` and `no` say whether this one does
so, or minds; an error is what our client raises. The tests ask for every row, and say what
happens in either case.
"""

from __future__ import annotations

import re

from dragoman import errors
from dragoman.client import Unreachable

Offer = bool | type[Exception]

TABLE = """
what                       reference             javascript                fasta2a
-- messages
answers without a task     yes                   yes                       no (1)
asks in its status         yes                   yes                       no (2)
says why it failed         yes                   yes                       no (2)
fails when it crashes      InternalError (3)     yes                       yes
goes on with a task        yes                   yes                       no (4)
takes null for data        yes                   InvalidAgentResponse (5)  yes
-- tasks
lists                      yes                   yes                       UnsupportedOperation
leaves the history out     yes                   yes                       no
streams beyond a question  yes                   yes                       Unreachable (6)
cancels before it answers  yes                   yes                       no (7)
has webhooks               yes                   yes                       InternalError (8)
has an extended card       yes                   yes                       InternalError (8)
-- mistakes
a reply to nothing         TaskNotFound          TaskNotFound              no (4)
a reply to what has ended  UnsupportedOperation  UnsupportedOperation      no (4)
another context            InvalidParams         InvalidParams             no (4)
a look at what has ended   UnsupportedOperation  UnsupportedOperation      no (9)
canceling what has ended   TaskNotCancelable     TaskNotCancelable         no (7)
canceling twice            TaskNotCancelable     no                        no (7)
a message without parts    InvalidParams         InvalidParams             InvalidAgentResponse (10)
says which field is wrong  yes                   no                        no
a page too large           InvalidParams         InvalidParams             UnsupportedOperation

(1) Its workers only know tasks.
(2) Its storage has no messages in a status: what the agent says is in the history.
(3) What an executor raises is the answer; the task itself is failed.
(4) It takes no follow-ups: a message to a task begins another, in the context that it names.
(5) It reads null as nothing, and gives back a part that holds nothing.
(6) It ends the streams of a task that asks, and each one that is begun anew.
(7) Canceling is work for a worker like any other; what has ended is answered as it is.
(8) It has no 1.0 name for these, and HTTP 500 is what it answers to unknown names.
(9) The stream tells the task and ends.
(10) It does not look, and shows the message in the history, where we do.
"""

OLDER = """
what                       reference-0.3          javascript-0.3        reference-0.2
-- messages
answers without a task     yes                    yes                   yes
asks in its status         yes                    yes                   yes
says why it failed         yes                    yes                   yes
fails when it crashes      InternalError (11)     yes (12)              InternalError (11)
goes on with a task        yes                    yes                   yes
takes null for data        InvalidParams          yes                   InvalidRequest
-- tasks
lists                      UnsupportedOperation   UnsupportedOperation  UnsupportedOperation
leaves the history out     no (13)                no (13)               no (13)
streams beyond a question  TaskNotFound (14)      Unreachable (15)      TaskNotFound (14)
cancels before it answers  yes                    yes                   yes
has webhooks               yes (16)               yes (17)              yes (16)
has an extended card       yes                    yes                   yes
-- mistakes
a reply to nothing         TaskNotFound           TaskNotFound          TaskNotFound
a reply to what has ended  InvalidParams          InvalidRequest        InvalidParams
another context            InvalidParams          no (18)               InvalidParams
a look at what has ended   InvalidParams          no (9)                InvalidParams
canceling what has ended   TaskNotCancelable      TaskNotCancelable     no (19)
canceling twice            TaskNotCancelable      TaskNotCancelable     no (19)
a message without parts    InternalError          InvalidParams (20)    InternalError
says which field is wrong  no                     no                    no
a page too large           UnsupportedOperation   UnsupportedOperation  UnsupportedOperation

(11) What an executor raises is the answer; a stream breaks off, the task stays submitted, and
    another stream of it says nothing and does not end.
(12) The task that failed has another id than the one that crashed, which stays at work.
(13) 0 is read as no limit; in javascript-0.3 no number is read as 0 should be.
(14) Its queue is gone when the turn has ended. Streams do not begin with the task.
(15) The stream tells the task and ends.
(16) It finds the first one, whatever id is asked for; has no way to list or delete over HTTP+JSON
    and gRPC; knows no Authorization; and is silent when a task is canceled.
(17) One that is not there is an internal error; knows no Authorization.
(18) The task that the message names goes on.
(19) It is canceled, once more.
(20) Because of its empty id; a message without parts is fine with it.
"""

BINDINGS = """
what                       reference-0.3-HTTP+JSON  reference-0.3-GRPC    javascript-0.3-GRPC
streams beyond a question  Unreachable (21)         TaskNotFound          Unreachable
has an extended card       yes                      no (22)               yes
a reply to what has ended  InvalidParams            InvalidParams         InvalidParams (23)
a look at what has ended   Unreachable (21)         InvalidParams         no

(21) Streams that cannot be begun are cut off, and nothing says why.
(22) There is a public card only.
(23) The status has no other name for an invalid request.
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
    found: type[Exception] = Unreachable if word == "Unreachable" else getattr(errors, word)
    return found


OFFERS = _read(TABLE, OLDER, BINDINGS)
