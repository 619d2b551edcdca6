"""An agent that leaves a state in the conversation, as an older version of a framework has."""

from __future__ import annotations

import os

from script import unreadable

agent = unreadable(os.environ["PACKAGE"], os.environ["NAME"], bytes.fromhex(os.environ["STATE"]))
