"""What is attacked: two applications, one with a lock and one without, and the parsers of our own
clients. What must hold of every answer is said here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import msgspec
from google.rpc import status_pb2
from joserfc.jwk import ECKey

from dragoman import App
from dragoman.bindings import jsonrpc
from dragoman.client import discovery, sse
from dragoman.conformance import card as checking
from dragoman.model.errors import A2AError
from dragoman.security import ApiKey, canonical_card, card_signatures
from dragoman.security.card_keys import CardKey
from dragoman.webhooks.receiver import Receiver
from tests.faults.test_bytes import FULL, echo
from tests.security.fuzz.cases import (
    CARD,
    ENDED,
    EVENTS,
    GRPC,
    HOOK,
    HTTP,
    THEIRS,
    WAITING,
    Case,
)

CANARY = "what only alice knows"
PATIENCE = 20.0
INSIDE = re.compile(
    rb"Traceback|site-packages|/dragoman/|\.py\b|sqlite3|asyncio\.|msgspec\.|object at 0x"
    rb"|\b(Value|Type|Key|Attribute|Assertion|Overflow|Recursion|Runtime|Lookup|Index|OS)Error\b"
    rb"|\bUnicode(De|En)codeError\b"
)
"""What tells of the inside."""
STREAMS = ("SendStreamingMessage", "SubscribeToTask", "TaskSubscription")


class Wrong(AssertionError):
    """An answer that is not as every answer must be."""


class Listener(logging.Handler):
    """Hears what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, with its cause."""
        cause = record.exc_info[1] if record.exc_info else None
        self.heard.append(f"{record.getMessage()} {cause!r}")


class Answer(msgspec.Struct):
    """What came back over HTTP."""

    status: int = 0
    headers: dict[bytes, bytes] = {}
    body: bytes = b""
    over: bool = False


class Target:
    """One application."""

    def __init__(self, app: App, guarded: bool) -> None:
        self.app = app
        self.guarded = guarded
        self.tasks: dict[str, str] = {}
        self.channel: Any = None
        self.listeners = self._listeners()

    def _listeners(self) -> int:
        """How many wait for something to happen."""
        return sum(map(len, self.app.bell.listeners._by_topic.values()))

    async def prepare(self) -> None:
        """Tasks to be asked for. They are made anew now and then: cases end and cancel them."""
        key = ((b"x-key", b"m-key"),)
        self.tasks[ENDED] = await self._task("hello", "echo", key)
        self.tasks[WAITING] = await self._task("hello", "ask", key)
        if THEIRS not in self.tasks:
            text = CANARY if self.guarded else "anybody's"
            self.tasks[THEIRS] = await self._task(text, "ask", ((b"x-key", b"a-key"),))

    async def _task(self, text: str, skill: str, headers: Any) -> str:
        message = {
            **FULL["message"],  # type: ignore[dict-item]
            "parts": [{"text": text}],
            "metadata": {"skill": skill},
            "messageId": f"{text}-{len(self.tasks)}",
            "referenceTaskIds": [],
        }
        answer = await self.ask(
            Case(HTTP, json.dumps({"message": message}).encode(), "POST", "/message:send", headers)
        )
        return str(json.loads(answer.body)["task"]["id"])

    async def ask(self, case: Case) -> Answer:
        """Call the application as a server would."""
        path, _, query = case.target.partition("?")
        raw = path.encode("latin-1", "replace")
        scope = {
            "type": "http",
            "method": case.verb,
            "path": unquote(path),
            "raw_path": raw,
            "query_string": query.encode("latin-1", "replace"),
            "headers": list(case.headers),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        answer, told = Answer(), False
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal told
            if not told:
                told = True
                return {"type": "http.request", "body": case.body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                if answer.status:
                    raise Wrong("two answers")
                answer.status, answer.headers = message["status"], dict(message["headers"])
                if any(b"\n" in v or b"\r" in v for _, v in message["headers"]):
                    raise Wrong("a header of more than one line")
                return
            answer.body += message["body"]
            answer.over = not message.get("more_body", False)
            if answer.body:
                gone.set()  # of a stream the beginning is enough
                answer.over |= b"event-stream" in answer.headers[b"content-type"]

        async with asyncio.timeout(PATIENCE):
            await self.app(scope, receive, send)
        if not answer.status:
            raise Wrong("no answer")
        return answer

    # -- HTTP

    async def http(self, case: Case) -> None:
        """Send it, and look at what comes back."""
        answer = await self.ask(case)
        sound(answer)
        path = unquote(case.target.partition("?")[0])
        rpc = case.verb == "POST" and (path == "/" or path in jsonrpc.PATHS)
        kind = answer.headers.get(b"content-type", b"")
        if kind.startswith(b"text/event-stream"):
            for event in events(answer.body):
                enveloped(case, event) if rpc and b"error" not in event else json.loads(event)
        elif answer.body and case.verb != "HEAD":
            document = json.loads(answer.body)
            if rpc and not isinstance(document.get("error", {}).get("status"), str):
                enveloped(case, answer.body)
            elif answer.status >= 400:
                problem(document)
        elif answer.status not in (204, 304) and case.verb != "HEAD":
            raise Wrong(f"an empty answer {answer.status}")

    # -- gRPC

    async def grpc(self, case: Case) -> None:
        """Send it over a socket: there is no other way."""
        metadata = [(k.decode(), v.decode()) for k, v in case.headers]
        streams = case.target.endswith(STREAMS)
        start = self.channel.unary_stream if streams else self.channel.unary_unary
        call = start(case.target)(case.body, metadata=metadata, timeout=PATIENCE)
        try:
            if streams:
                body = b""
                async for event in call:
                    body = event
                    break
                call.cancel()
            else:
                body = await call
        except grpc.aio.AioRpcError as error:
            return self._refused(error)
        if CANARY.encode() in body:
            raise Wrong("it is another's")
        return None

    def _refused(self, error: grpc.aio.AioRpcError) -> None:
        code, words = error.code(), error.details() or ""
        allowed = grpc.StatusCode
        if code in (allowed.UNKNOWN, allowed.DEADLINE_EXCEEDED, allowed.DATA_LOSS):
            raise Wrong(f"{code} {words}")
        if code is allowed.INTERNAL and not is_deep(words):
            raise Wrong(f"{code} {words}")
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        if details is None:
            # these are gRPC's own: a method that is none, and more metadata than it takes
            if code is not allowed.UNIMPLEMENTED and "metadata size" not in words:
                raise Wrong(f"{code} {words} without details")
            return
        status = status_pb2.Status.FromString(details)
        if status.code != code.value[0] or not status.details:
            raise Wrong(f"{code} has other details")
        if INSIDE.search(words.encode()):
            raise Wrong(f"the inside shows: {words}")

    # -- both

    async def alive(self) -> None:
        """A normal call is answered, and what is another's is as it was."""
        if not self.guarded:
            return
        key = ((b"x-key", b"a-key"),)
        answer = await self.ask(Case(HTTP, b"", "GET", f"/tasks/{self.tasks[THEIRS]}", key))
        task = json.loads(answer.body)
        if answer.status != 200 or task["status"]["state"] != "TASK_STATE_INPUT_REQUIRED":
            raise Wrong(f"alice's task is not as it was: {answer}")
        if len(task["history"]) != 1:
            raise Wrong(f"somebody has worked on alice's task: {task}")

    async def settled(self) -> None:
        """Nothing is left open."""
        app = self.app
        for _ in range(500):
            listeners = max(self._listeners() - self.listeners, 0)
            left = (len(app.streams.open), len(app.bodies._arriving), listeners)
            busy = app._worker is not None and bool(app._worker.runs)
            if not any(left) and not busy:
                return
            await asyncio.sleep(0.02)
        raise Wrong(f"streams, bodies, listeners that are left: {left}, runs: {busy}")


def is_deep(words: str) -> bool:
    """JSON may be nested more deeply than protobuf can be; that is said of what was stored."""
    return "nest" in words or "deep" in words


def sound(answer: Answer) -> None:
    """What holds of every answer."""
    if not answer.over:
        raise Wrong("the answer has no end")
    if answer.status >= 500 and not (answer.status == 503 and b"retry-after" in answer.headers):
        raise Wrong(f"{answer.status}: {answer.body[:300]!r}")
    if CANARY.encode() in answer.body:
        raise Wrong("it is another's")
    for mark in (b"INTERNAL_ERROR", b"TASK_STATE_FAILED", b'"failed"'):
        if mark in answer.body:
            raise Wrong(f"{mark!r}: {answer.body[:300]!r}")
    if answer.status >= 400 or b'"error"' in answer.body:
        # what was sent comes back in some; none of that is in what is sent
        found = INSIDE.search(re.sub(rb'"type":"\w+Error"', b"", answer.body))
        if found:
            raise Wrong(f"the inside shows: {found[0]!r} in {answer.body[:300]!r}")


def events(body: bytes) -> Iterator[bytes]:
    """The data of server-sent events."""
    for event in body.split(b"\n\n"):
        lines = [line for line in event.split(b"\n") if line.startswith(b"data: ")]
        if lines:
            yield b"\n".join(line[6:] for line in lines)


def enveloped(case: Case, body: bytes) -> None:
    """A JSON-RPC answer with the id of its question."""
    document = json.loads(body)
    if document.get("jsonrpc") != "2.0" or ("result" in document) == ("error" in document):
        raise Wrong(f"no JSON-RPC: {body[:300]!r}")
    try:
        asked = msgspec.json.decode(case.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    id = asked.get("id") if isinstance(asked, dict) else None
    known = isinstance(id, str | int | float) and not isinstance(id, bool)
    # (what is nested too deeply is not read)
    if document["id"] != (id if known else None) and document["id"] is not None:
        raise Wrong(f"asked as {id!r}, answered as {document['id']!r}")
    if "result" in document and document["id"] != id:
        raise Wrong(f"asked as {id!r}, answered as {document['id']!r}")


def problem(document: Any) -> None:
    """An error as HTTP+JSON has it."""
    if "error" not in document:  # 0.3, or the health
        if not document.get("message") and not document.get("status"):
            raise Wrong(f"an error that says nothing: {document}")
        return
    error = document["error"]
    details = error.get("details") or error["data"]
    if not error["message"] or not details[0]["reason"]:
        raise Wrong(f"an error that says nothing: {document}")


# ---- our own clients -----------------------------------------------------------------------

TRUSTED = CardKey.load(ECKey.generate_key("P-256", parameters={"kid": "k"}).as_dict(private=True))


class Chunks:
    """A response of these bytes."""

    status = 200
    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        """In pieces of any length."""
        size = len(self.body) % 7 + 1
        for start in range(0, len(self.body), size):
            yield self.body[start : start + size]

    async def close(self) -> None:
        """Nothing to close."""


async def read(case: Case) -> None:
    """Let our own readers read it: they may refuse it, and nothing else."""
    body = case.body
    if case.kind == CARD:
        for reading, allowed in (
            (lambda: discovery.decode(body, "here"), A2AError),
            (lambda: canonical_card.parse(body), ValueError),
            (lambda: canonical_card.canonical(body), ValueError),
            (lambda: card_signatures.verify(body, [TRUSTED]), card_signatures.Unverified),
            (lambda: checking.check(body, url="https://h.example/x"), ()),
        ):
            _refusing(reading, allowed)  # type: ignore[arg-type]
    elif case.kind == HOOK:
        receiver = Receiver(insecure=True)
        _refusing(lambda: receiver.verify(dict(case.headers), body), A2AError)
    else:
        assert case.kind == EVENTS
        try:
            async for event in sse.events(Chunks(body)):
                assert isinstance(event.data, bytes)
        except A2AError:
            return


def _refusing(reading: Any, allowed: Any) -> None:
    try:
        reading()
    except allowed:
        return
    except Exception as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error


# ---- the whole -----------------------------------------------------------------------------


class FuzzTargets:
    """Everything that is attacked."""

    def __init__(self, targets: list[Target], listener: Listener) -> None:
        self.targets = targets
        self.listener = listener

    async def send(self, case: Case, number: int = 0) -> None:
        """Send a case where it belongs; Wrong says what does not hold."""
        if case.kind == HTTP:
            target = self.targets[number % 2]
            await target.http(case.about(target.tasks))
        elif case.kind == GRPC:
            target = self.targets[number % 2]
            await target.grpc(case.about(target.tasks))
        else:
            await read(case)

    async def look(self) -> None:
        """After a batch: all is well."""
        for target in self.targets:
            await target.alive()
            await target.prepare()
        if self.listener.heard:
            heard, self.listener.heard = self.listener.heard, []
            raise Wrong(f"logged as an error: {heard[:3]}")


@asynccontextmanager
async def fuzz_targets(folder: Path) -> AsyncIterator[FuzzTargets]:
    """The applications, up and running."""
    shared: dict[str, Any] = {
        "push": True,
        "push_retries": (),
        "egress_allow": ["x"],
        "grpc_port": 0,
        "drain_timeout": 0.0,
        "cancel_grace": 0.2,
        "blocking_timeout": 5.0,
    }
    agents = [echo(), echo()]
    for agent in agents:
        agent.extended = True
        agent.extended_card(lambda caller, public: public)
    guarded = App(
        agents[0],
        auth=ApiKey(header="X-Key", keys={"alice": "a-key", "mallory": "m-key"}),
        store=f"sqlite:///{folder}/x.db?synchronous=normal",
        trust_forwarded=True,
        hsts=60.0,
        cors=("https://page.example",),
        audit=True,
        **shared,
    )
    # nobody says who they are there, so that whatever is asked for is everybody's
    opened = App(agents[1], store="memory:?max_tasks=2000", **shared)
    listener = Listener()
    names = ("dragoman", "asyncio")
    for name in names:
        logging.getLogger(name).addHandler(listener)
    try:
        async with AsyncExitStack() as stack:
            targets = [Target(guarded, True), Target(opened, False)]
            for target in targets:
                await stack.enter_async_context(target.app)
                target.listeners = target._listeners()
                channel = grpc.aio.insecure_channel(f"127.0.0.1:{target.app.ports[0].number}")
                stack.push_async_callback(channel.close)
                target.channel = channel
                await target.prepare()
            yield FuzzTargets(targets, listener)
            for target in targets:
                await target.settled()
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(listener)
