"""`dragoman chat`: a conversation with an agent on the terminal.

The conversation runs in the main thread, which receives Ctrl-C, and the client runs in another
thread, so that Ctrl-C can interrupt every wait.
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
from dragoman.cli.agent_commands import CHAT, operation_text
from dragoman.cli.colors import BOLD, CYAN, DIM, RED, YELLOW, paint
from dragoman.cli.terminal_format import plain, word
from dragoman.cli.terminal_output import PAY, UNPAID, Screen, error_text, exit_status, unpaid
from dragoman.client import AnswerRefused, File, Unreachable
from dragoman.client.sync import Client, Stream
from dragoman.model.approvals import ApprovalRequest, answer
from dragoman.model.errors import A2AError, TaskNotFound, UnsupportedOperation
from dragoman.model.types import Part, Role, Task, TaskState

HISTORY = "history"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def run(arguments: argparse.Namespace) -> int:
    """Chat until the input ends, and return the exit status."""

    def chat() -> int:
        with ExitStack() as stack:
            with connect_options.waiting(connect_options.FETCHING):
                agent = stack.enter_context(Client(connect_options.client(arguments)))
            stack.enter_context(InputHistory())
            return Chat(agent, arguments).run()

    return connect_options.guarded(chat, arguments)


class InputHistory:
    """Loads and saves the history of typed lines, if readline is available."""

    def __enter__(self) -> InputHistory:
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
    """One conversation. The next message goes to the task that waits for input, or starts a new
    task."""

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
        """Read lines until the input ends, and return the exit status."""
        if self._live:
            self._show_card()
        while True:
            try:
                line = self._read()
            except EOFError:
                if self._live:
                    print(file=sys.stderr)
                return 0 if self._live else self._status
            except KeyboardInterrupt:
                self._note("\n(Ctrl-D or /quit to leave)")
                continue
            if line.startswith("/") and self._live:
                if line.strip() in ("/quit", "/exit"):
                    return 0
                self._command(line)
            elif line.strip() or self._attached:
                self._send(line)

    def _read(self) -> str:
        """Read a line; a line that ends in a backslash continues on the next one."""
        text = ""
        while True:
            line = input(self._prompt(bool(text)) if self._live else "")
            if not line.endswith("\\"):
                return text + line
            text += line[:-1] + "\n"

    def _prompt(self, more: bool) -> str:
        text = "...> " if more else "answer> " if self._waiting else "you> "
        # readline needs marks around characters that take no space on the screen
        return _STYLE.sub("\001\\g<0>\002", paint(text, f"{BOLD};{CYAN}", sys.stdout))

    # -- a turn

    def _send(self, text: str, **more: Any) -> None:
        parts: list[File | Part] = [*([Part(text=text)] if text.strip() else []), *self._attached]
        stream = self._agent.stream(
            parts,
            task=self._waiting,
            context=self._context,
            keep=False,  # the events are printed, not collected
            **self._options(),
            **more,
        )
        try:
            with stream:
                for event in stream:
                    # the first task of a stream only repeats what the user has just typed
                    if not isinstance(event, Task) or event.status.state.terminal:
                        self._screen.event(event)
            self._screen.end_line()
            self._settle(stream)
        except KeyboardInterrupt:
            self._screen.end_line()
            self._stop(stream)
        except AnswerRefused as error:
            self._screen.end_line()
            self._note(f"nothing was paid: {error_text(error)}", RED)
            self._status, self._waiting = UNPAID, ""  # no line of the user is the payment
        except (A2AError, Unreachable, TimeoutError, OSError) as error:
            self._screen.end_line()
            self._note(error_text(error) or "no answer in time", RED)
            self._status = 1
            if isinstance(error, TaskNotFound | UnsupportedOperation):
                self._waiting = ""  # the task has ended meanwhile
            if stream.task is None:
                return  # keep the attachments, so that the user can send again
        self._attached = []

    def _options(self) -> Any:
        return {"skill": self._skill} if self._skill else {}

    def _settle(self, stream: Stream) -> None:
        result = stream.result
        self._status = exit_status(result)
        if result.task is None:
            message = result.message
            self._context = (message.context_id if message else "") or self._context
            return
        self._last, self._context = result.task.id, result.task.context_id
        state = result.task.status.state
        self._waiting = result.task.id if state.interrupted else ""
        self._grant = result.grant
        if why := unpaid(result):
            self._waiting = ""  # no line of the user is the payment
            self._note(f"({plain(why)}; nothing was paid: {PAY})", RED)
        elif self._grant is not None:
            self._note(f"(the agent asks for approval: {operation_text(self._grant)})", YELLOW)
            self._note("(until " + plain(self._grant.expires) + "; /approve or /decline)", YELLOW)
        elif state is TaskState.AUTH_REQUIRED:
            self._note("(the agent waits until you have logged in)", YELLOW)

    def _stop(self, stream: Stream) -> None:
        """Handle Ctrl-C during a turn: cancel the task."""
        self._status = 130
        if stream.task is None:
            self._note("(stopped waiting; the agent has not answered)", YELLOW)
            return
        self._last, self._context, self._waiting = stream.task.id, stream.task.context_id, ""
        self._cancel(stream.task.id)

    def _cancel(self, task: str) -> None:
        self._note("(canceling; press Ctrl-C again to stop waiting)", YELLOW)
        try:
            found = self._agent.task(task).cancel()
            self._waiting = ""
            self._note(f"[{word(found.status.state)}]", YELLOW)
        except KeyboardInterrupt:
            self._note("(not canceled)", YELLOW)
        except (A2AError, Unreachable, TimeoutError) as error:
            self._note(error_text(error) or "no answer in time", RED)

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
            "card": lambda _: self._show_card(),
            "help": lambda _: self._note(CHAT),
        }
        try:
            if name in known:
                known[name](rest)
            else:
                self._note(f"unknown command /{plain(name)}; type /help for the list")
        except (A2AError, Unreachable, TimeoutError, UsageError) as error:
            self._note(error_text(error), RED)

    def _answer(self, *, approved: bool) -> None:
        if self._grant is None:
            raise UsageError("the agent does not ask for an approval")
        metadata = answer(self._grant, approved=approved)
        self._grant = None
        self._send("Approved" if approved else "Declined", metadata=metadata)

    def _attach(self, rest: str) -> None:
        try:
            names = shlex.split(rest)
        except ValueError as error:
            raise UsageError(str(error)) from None
        paths = [Path(name).expanduser() for name in names]
        missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
        if missing:  # attach all or none, so that a second attempt attaches no file twice
            none = "; no file was attached" if len(names) > 1 else ""
            raise UsageError(f"{', '.join(missing)}: no such file{none}")
        self._attached += map(File, paths)
        count = len(self._attached)
        self._note(f"{count} attached to the next message" if count else "usage: /attach FILE …")

    def _data(self, rest: str) -> None:
        try:
            self._attached.append(Part(data=json.loads(rest)))
        except ValueError as error:
            raise UsageError(f"not valid JSON: {error}") from None
        self._note(f"{len(self._attached)} attached to the next message")

    def _new(self, _: str) -> None:
        self._context = self._waiting = self._last = ""
        self._attached = []
        self._note("started a new conversation")

    def _task(self, _: str) -> None:
        if not self._last:
            self._idle()
            return
        task = self._agent.task(self._last).get()
        self._note(f"[{word(task.status.state)}] task {plain(task.id)}")

    def _history(self, _: str) -> None:
        if not self._last:
            self._idle()
            return
        task = self._agent.task(self._last).get()
        for message in task.history:
            self._show_parts("you  " if message.role is Role.USER else "agent", message.parts)
        for artifact in task.artifacts:
            self._show_parts("agent", _joined(artifact.parts), artifact.name)
        if task.status.message is not None:
            self._show_parts("agent", task.status.message.parts)

    def _show_parts(self, sender: str, parts: Sequence[Part], name: str = "") -> None:
        """Print a message or an artifact in one line."""
        screen = Screen()  # without a folder, so that no file is saved a second time
        words = " ".join(screen.words(part) for part in parts)
        self._note(f"{sender}  {f'{plain(name)}: ' if name else ''}{words}")

    def _idle(self) -> None:
        self._note("there is no task yet")

    def _show_card(self) -> None:
        card = self._agent.card
        self._note(f"{plain(card.name)} {plain(card.version)}", BOLD)
        self._note(plain(card.description))
        for skill in card.skills:
            such = f", for example: {plain(skill.examples[0])}" if skill.examples else ""
            self._note(f"  {plain(skill.id)}: {plain(skill.description)}{such}")
        self._note("type /help for the list of commands")

    def _note(self, text: str, style: str = DIM) -> None:
        for line in text.split("\n"):
            print(paint(line, style, sys.stderr), file=sys.stderr, flush=True)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Join adjacent texts of an artifact, because they are chunks of one text."""
    found: list[Part] = []
    for part in parts:
        before = found[-1].text if found else None
        if part.text is not None and before is not None:
            found[-1] = Part(text=before + part.text)
        else:
            found.append(part)
    return found
