"""`dragoman chat`: a conversation with an agent on the terminal.

The conversation is plain code in the main thread, where Ctrl-C arrives, and the client is in
another, so that whatever is waited for can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dragoman.cli import UsageError, connect_options
from dragoman.cli.agent_commands import CHAT, asks
from dragoman.cli.colors import BOLD, CYAN, DIM, RED, YELLOW, paint
from dragoman.cli.terminal_output import Screen, complaint, verdict
from dragoman.cli.text_table import plain, word
from dragoman.client import File, Unreachable
from dragoman.client.sync import Client, Stream
from dragoman.model.approvals import ApprovalRequest, answer
from dragoman.model.errors import A2AError, TaskNotFound, UnsupportedOperation
from dragoman.model.types import Part, Role, Task, TaskState

HISTORY = "history"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def run(arguments: argparse.Namespace) -> int:
    """Talk until there is nothing more to say."""

    def talk() -> int:
        with ExitStack() as stack:
            with connect_options.waiting(connect_options.FETCHING):
                agent = stack.enter_context(Client(connect_options.client(arguments)))
            stack.enter_context(Memory())
            return Chat(agent, arguments).run()

    return connect_options.guarded(talk, arguments)


class Memory:
    """The lines that were typed before, where the terminal can edit lines."""

    def __enter__(self) -> Memory:
        self._readline: Any = None
        if sys.stdin.isatty():
            with suppress(ImportError):  # not on every system
                import readline

                self._readline = readline
                self._file = connect_options.state() / HISTORY
                with suppress(OSError):
                    readline.read_history_file(self._file)
                readline.set_history_length(1000)
        return self

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._file.touch(mode=0o600)
                self._readline.write_history_file(self._file)


class Chat:
    """One conversation: what is said next goes to the task that waits, or begins another."""

    def __init__(self, agent: Client, arguments: argparse.Namespace) -> None:
        self._agent = agent
        self._live = sys.stdin.isatty()
        self._screen = Screen(folder=arguments.output, brief=self._live)
        self._skill: str = arguments.skill
        self._context: str = arguments.context
        self._waiting: str = arguments.task
        """The task that the next message goes to."""
        self._last: str = arguments.task
        self._attached: list[File | Part] = []
        self._grant: ApprovalRequest | None = None
        self._status = 0

    def run(self) -> int:
        """Until the end of the input."""
        if self._live:
            self._introduce()
        while True:
            try:
                line = self._read()
            except EOFError:
                if self._live:
                    print(file=sys.stderr)
                return 0 if self._live else self._status
            except KeyboardInterrupt:
                self._aside("\n(Ctrl-D or /quit to leave)")
                continue
            if line.startswith("/") and self._live:
                if line.strip() in ("/quit", "/exit"):
                    return 0
                self._command(line)
            elif line.strip() or self._attached:
                self._say(line)

    def _read(self) -> str:
        """A line, or several that were joined."""
        said = ""
        while True:
            line = input(self._prompt(bool(said)) if self._live else "")
            if not line.endswith("\\"):
                return said + line
            said += line[:-1] + "\n"

    def _prompt(self, more: bool) -> str:
        text = "...> " if more else "answer> " if self._waiting else "you> "
        # readline must be told what takes no room
        return _STYLE.sub("\001\\g<0>\002", paint(text, f"{BOLD};{CYAN}", sys.stdout))

    # -- a turn

    def _say(self, text: str, **saying: Any) -> None:
        parts: list[File | Part] = [*([Part(text=text)] if text.strip() else []), *self._attached]
        stream = self._agent.stream(
            parts,
            task=self._waiting,
            context=self._context,
            keep=False,  # it is on the screen
            **self._saying(),
            **saying,
        )
        try:
            with stream:
                for event in stream:
                    # what the person has just said need not be told
                    if not isinstance(event, Task) or event.status.state.terminal:
                        self._screen.event(event)
            self._screen.rest()
            self._settle(stream)
        except KeyboardInterrupt:
            self._screen.rest()
            self._stop(stream)
        except (A2AError, Unreachable, TimeoutError, OSError) as error:
            self._screen.rest()
            self._aside(complaint(error) or "no answer in time", RED)
            self._status = 1
            if isinstance(error, TaskNotFound | UnsupportedOperation):
                self._waiting = ""  # it has ended meanwhile
            if stream.task is None:
                return  # it may be said again, with what was attached
        self._attached = []

    def _saying(self) -> Any:
        return {"skill": self._skill} if self._skill else {}

    def _settle(self, stream: Stream) -> None:
        result = stream.result
        self._status = verdict(result.state)
        if result.task is None:
            message = result.message
            self._context = (message.context_id if message else "") or self._context
            return
        self._last, self._context = result.task.id, result.task.context_id
        state = result.task.status.state
        self._waiting = result.task.id if state.interrupted else ""
        self._grant = result.grant
        if self._grant is not None:
            self._aside(f"(the agent asks for approval: {asks(self._grant)})", YELLOW)
            self._aside("(until " + plain(self._grant.expires) + "; /approve or /decline)", YELLOW)
        elif state is TaskState.AUTH_REQUIRED:
            self._aside("(the agent waits until you have logged in)", YELLOW)

    def _stop(self, stream: Stream) -> None:
        """The person has had enough of this turn."""
        self._status = 130
        if stream.task is None:
            self._aside("(stopped waiting; the agent has not answered)", YELLOW)
            return
        self._last, self._context, self._waiting = stream.task.id, stream.task.context_id, ""
        self._cancel(stream.task.id)

    def _cancel(self, task: str) -> None:
        self._aside("(canceling; press Ctrl-C again to stop waiting)", YELLOW)
        try:
            found = self._agent.task(task).cancel()
            self._waiting = ""
            self._aside(f"[{word(found.status.state)}]", YELLOW)
        except KeyboardInterrupt:
            self._aside("(not canceled)", YELLOW)
        except (A2AError, Unreachable, TimeoutError) as error:
            self._aside(complaint(error) or "no answer in time", RED)

    # -- commands

    def _command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        known: dict[str, Callable[[str], None]] = {
            "attach": self._attach,
            "data": self._data,
            "new": self._new,
            "task": self._task,
            "approve": lambda _: self._answer(approved=True),
            "decline": lambda _: self._answer(approved=False),
            "cancel": lambda _: self._cancel(self._waiting) if self._waiting else self._idle(),
            "history": self._history,
            "card": lambda _: self._introduce(),
            "help": lambda _: self._aside(CHAT),
        }
        try:
            if name in known:
                known[name](rest)
            else:
                self._aside(f"unknown command /{plain(name)}; type /help for the list")
        except (A2AError, Unreachable, TimeoutError, UsageError) as error:
            self._aside(complaint(error), RED)

    def _answer(self, *, approved: bool) -> None:
        if self._grant is None:
            raise UsageError("the agent does not ask for an approval")
        metadata = answer(self._grant, approved=approved)
        self._grant = None
        self._say("Approved" if approved else "Declined", metadata=metadata)

    def _attach(self, rest: str) -> None:
        try:
            names = shlex.split(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        paths = [Path(name).expanduser() for name in names]
        missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
        if missing:  # all or none: whoever tries again would attach some twice
            none = "; no file was attached" if len(names) > 1 else ""
            raise UsageError(f"{', '.join(missing)}: no such file{none}")
        self._attached += map(File, paths)
        count = len(self._attached)
        self._aside(f"{count} attached to the next message" if count else "usage: /attach FILE …")

    def _data(self, rest: str) -> None:
        try:
            self._attached.append(Part(data=json.loads(rest)))
        except ValueError as error:
            raise UsageError(f"not valid JSON: {error}") from None
        self._aside(f"{len(self._attached)} attached to the next message")

    def _new(self, _: str) -> None:
        self._context = self._waiting = self._last = ""
        self._attached = []
        self._aside("started a new conversation")

    def _task(self, _: str) -> None:
        if not self._last:
            self._idle()
            return
        task = self._agent.task(self._last).get()
        self._aside(f"[{word(task.status.state)}] task {plain(task.id)}")

    def _history(self, _: str) -> None:
        if not self._last:
            self._idle()
            return
        task = self._agent.task(self._last).get()
        for message in task.history:
            self._tell("you  " if message.role is Role.USER else "agent", message.parts)
        for artifact in task.artifacts:
            self._tell("agent", _joined(artifact.parts), artifact.name)
        if task.status.message is not None:
            self._tell("agent", task.status.message.parts)

    def _tell(self, who: str, parts: Sequence[Part], name: str = "") -> None:
        """What somebody has said or produced, in a line."""
        shown = Screen()  # it saves no file a second time
        words = " ".join(shown.words(part) for part in parts)
        self._aside(f"{who}  {f'{plain(name)}: ' if name else ''}{words}")

    def _idle(self) -> None:
        self._aside("there is no task yet")

    def _introduce(self) -> None:
        card = self._agent.card
        self._aside(f"{plain(card.name)} {plain(card.version)}", BOLD)
        self._aside(plain(card.description))
        for skill in card.skills:
            such = f", for example: {plain(skill.examples[0])}" if skill.examples else ""
            self._aside(f"  {plain(skill.id)}: {plain(skill.description)}{such}")
        self._aside("type /help for the list of commands")

    def _aside(self, text: str, style: str = DIM) -> None:
        for line in text.split("\n"):
            print(paint(line, style, sys.stderr), file=sys.stderr, flush=True)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """The parts of an artifact, with texts that follow each other as one: they are pieces."""
    found: list[Part] = []
    for part in parts:
        before = found[-1].text if found else None
        if part.text is not None and before is not None:
            found[-1] = Part(text=before + part.text)
        else:
            found.append(part)
    return found
