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


def _read(table: str) -> dict[str, dict[str, Offer]]:
    head, *rows = (re.split(r"\s{2,}", line) for line in table.split("\n\n")[0].strip().split("\n"))
    return {
        row[0]: {name: _offer(cell) for name, cell in zip(head[1:], row[1:], strict=True)}
        for row in rows
        if not row[0].startswith("--")
    }


def _offer(cell: str) -> Offer:
    word = cell.split(" ")[0]
    if word in ("yes", "no"):
        return word == "yes"
    found: type[Exception] = Unreachable if word == "Unreachable" else getattr(errors, word)
    return found


OFFERS = _read(TABLE)
