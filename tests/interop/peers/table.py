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

(11) A send waits for the end of the turn, whatever it says.
(12) The task that failed has another id than the one that crashed, which stays at work.
(13) What an executor raises is the answer; a stream breaks off. The task stays as it is for ever.
(14) It drops the work when the stream that began it is cut, and the task stays at work for ever.
(15) Inside of an object, with a mark in the metadata, as what is no object must be before 1.0.
(16) 0 is read as no limit; in javascript-0.3 no number is read as 0 should be.
(17) Our client does not subscribe before 1.0, it looks at the task. The reference does not tell
    the task first, tells nothing of a task that asks or was canceled, and adds each chunk to the
    task once more for everyone who has subscribed; javascript-0.3 ends where the task asks.
(18) What has ended is canceled, once more.
(19) It answers with the first one, whatever id is asked for.
(20) It has no other error for it.
(21) It posts the task itself, as those versions do.
(22) It posts what comes of messages, and no more.
(23) The token is sent; credentials are not.
(24) The task that the message names goes on.
(25) Because of its empty id; a message without parts is fine with it.
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

(26) It drops the names of files and the metadata of parts, the mark of (15) with it. The bytes of
    files arrive at its agents as base64, which is how the reference wants them.
(27) There is a path for it, but nothing behind it.
(28) There is no path for it.
(29) 0 cannot be told from no number there, which gives none.
(30) Streams that cannot be begun are cut off, and nothing says why.
(31) So it answers to whatever prevents a stream.
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

(32) Only here is a stream told of it.
(33) It becomes 0.
(34) There is a public card only.
(35) The method is there, and says that it is not.
(36) The status has no other name for an invalid request.
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
