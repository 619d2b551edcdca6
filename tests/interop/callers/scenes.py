"""The scenes that every Python caller plays, and the lines that it prints about them.

A caller is a `Caller` with what its SDK can say; what the SDK gives back is told as the JSON that
it stands for, in whichever dialect, and told on in one form (see `plain`).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from caller import Absent, Caller, Told
from plain import fault, plain, text

PATIENCE = 15
"""A scene that takes more seconds has failed."""
BYTES = base64.b64encode(b"\x00\xff\xfe bytes").decode()
QUIET = 0.4
"""So many seconds nothing happens in a stream, where a server may send signs of life."""
FILE = "https://files.example/a?b=c"
ENDED = ("completed", "failed", "canceled", "rejected")


# ---- a place for webhooks --------------------------------------------------------------------


class Sink:
    """Takes what is posted to it."""

    def __init__(self) -> None:
        self.posts: list[Told] = []
        sink = self

        class Taker(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                sink.posts.append({"headers": headers, "body": body})
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    async def ended(self) -> list[Told]:
        """All that was posted, once a task has ended."""
        while not any(post_state(post["body"]) in ENDED for post in self.posts):
            await asyncio.sleep(0.02)
        self._server.shutdown()
        self._server.server_close()
        return self.posts


def post_state(body: Told) -> str:
    """The state that a posted body tells, if it tells one."""
    return str(plain(body).get("state", ""))


# ---- the scenes ------------------------------------------------------------------------------

Scene = Callable[[Caller], Awaitable[Told]]
SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Scene:
    """One more."""
    SCENES[play.__name__.replace("_", " ")] = play
    return play


def _text(said: str) -> list[Told]:
    return [{"text": said}]


def needs(caller: Caller, name: str) -> None:
    """Stop before anything is begun, if the SDK cannot do this."""
    if getattr(type(caller), name) is getattr(Caller, name):
        raise Absent


async def begun(caller: Caller, said: str) -> str:
    """The id of a task that was started and not waited for."""
    return str(plain(await caller.send(_text(said), wait=False))["id"])


async def until(caller: Caller, task: str, *states: str) -> Told:
    """Ask for a task until it is in one of the states."""
    while True:
        found = plain(await caller.get(task))
        if found["state"] in states:
            return found
        await asyncio.sleep(0.02)


async def error(doing: Awaitable[Any]) -> Told:
    """The error that this meets."""
    try:
        await doing
    except Absent:
        raise
    except Exception as met:  # noqa: BLE001, whatever it is
        return fault(met)
    return {"error": None, "said": "", "code": None}


def streamed(events: list[Told]) -> Told:
    """What a stream told."""
    chunks = [event for event in events if event["kind"] == "artifact"]
    return {
        "kinds": [event["kind"] for event in events],
        "states": [event["state"] for event in events if "state" in event],
        "append": [chunk["append"] for chunk in chunks],
        "text": "".join(text(chunk["artifact"]["parts"]) for chunk in chunks),
        "final": [event["final"] for event in events if event["kind"] == "status"],
    }


@scene
async def card(caller: Caller) -> Told:
    return await caller.card()


@scene
async def send(caller: Caller) -> Told:
    return plain(await caller.send(_text("hello é 😀")))


@scene
async def poll(caller: Caller) -> Told:
    first = plain(await caller.send(_text("count 20"), wait=False))
    done = await until(caller, first["id"], *ENDED)
    return {"first": first["state"], "state": done["state"], "artifacts": done["artifacts"]}


@scene
async def data(caller: Caller) -> Told:
    held = {"list": [1, 1.5, True, "x"], "deep": {"text": ""}}
    return plain(await caller.send([{"data": held}]))


@scene
async def file_bytes(caller: Caller) -> Told:
    return plain(await caller.send([{"bytes": BYTES, "name": "a.png", "type": "image/png"}]))


@scene
async def file_url(caller: Caller) -> Told:
    return plain(await caller.send([{"url": FILE, "name": "a.csv", "type": "text/csv"}]))


@scene
async def stream(caller: Caller) -> Told:
    return streamed([plain(event) async for event in caller.stream(_text("count 5"))])


@scene
async def stream_reply(caller: Caller) -> Told:
    events = [plain(event) async for event in caller.stream(_text("say hi"))]
    return {"kinds": [event["kind"] for event in events], "text": text(events[0].get("parts", []))}


@scene
async def stream_refused(caller: Caller) -> Told:
    async def all_of_it() -> None:
        async for _ in caller.stream([]):
            pass

    return await error(all_of_it())


@scene
async def ask(caller: Caller) -> Told:
    asked = plain(await caller.send(_text("ask")))
    done = plain(await caller.send(_text("this one"), task=asked["id"], context=asked["context"]))
    return {
        "asked": asked["state"],
        "said": asked["said"],
        "same task": done["id"] == asked["id"],
        "same context": done["context"] == asked["context"],
        "state": done["state"],
        "artifacts": done["artifacts"],
    }


@scene
async def history(caller: Caller) -> Told:
    asked = plain(await caller.send(_text("ask")))
    done = plain(await caller.send(_text("this one"), task=asked["id"], context=asked["context"]))
    whole = plain(await caller.get(done["id"]))
    short = plain(await caller.get(done["id"], history=1))
    return {
        "whole": [[one["role"], text(one["parts"])] for one in whole["history"]],
        "short": [[one["role"], text(one["parts"])] for one in short["history"]],
    }


@scene
async def listing(caller: Caller) -> Told:
    needs(caller, "list")
    first = plain(await caller.send(_text("one")))
    second = plain(await caller.send(_text("two"), context=first["context"]))
    listed = [plain(task) for task in await caller.list(first["context"])]
    return {
        "found": [task["id"] for task in listed] == [second["id"], first["id"]],
        "states": [task["state"] for task in listed],
    }


@scene
async def cancel(caller: Caller) -> Told:
    needs(caller, "cancel")
    task = await begun(caller, "wait")
    await until(caller, task, "working")
    return {"state": plain(await caller.cancel(task))["state"]}


@scene
async def cancel_ended(caller: Caller) -> Told:
    needs(caller, "cancel")
    task = plain(await caller.send(_text("hello")))["id"]
    return await error(caller.cancel(task))


@scene
async def cancel_unknown(caller: Caller) -> Told:
    return await error(caller.cancel("unknown"))


@scene
async def get_unknown(caller: Caller) -> Told:
    return await error(caller.get("unknown"))


@scene
async def subscribe(caller: Caller) -> Told:
    needs(caller, "subscribe")
    task = await begun(caller, "wait")
    await until(caller, task, "working")
    events: list[Told] = []
    heard = asyncio.Event()

    async def listen() -> None:
        async for event in caller.subscribe(task):
            events.append(plain(event))
            heard.set()

    listening = asyncio.ensure_future(listen())
    try:
        # some servers do not say anything at first
        await asyncio.wait({listening, asyncio.ensure_future(heard.wait())}, timeout=1,
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        if listening.done():
            await listening
        await asyncio.sleep(QUIET)
        await caller.cancel(task)
        await listening
    finally:
        listening.cancel()
    return streamed(events)


@scene
async def subscribe_unknown(caller: Caller) -> Told:
    async def all_of_it() -> None:
        async for _ in caller.subscribe("unknown"):
            pass

    return await error(all_of_it())


@scene
async def webhook(caller: Caller) -> Told:
    needs(caller, "add_webhook")
    task = await begun(caller, "wait")
    given = {"id": "one", "url": "http://127.0.0.1:9/a", "token": "secret"}
    try:
        made = await caller.add_webhook(task, given)
        return {"made": made, "got": await caller.webhook(task, "one")}
    finally:
        await caller.cancel(task)


@scene
async def webhook_list(caller: Caller) -> Told:
    needs(caller, "webhooks")
    task = await begun(caller, "wait")
    try:
        for name in ("one", "two"):
            await caller.add_webhook(task, {"id": name, "url": f"http://127.0.0.1:9/{name}"})
        return {"ids": sorted(one["id"] for one in await caller.webhooks(task))}
    finally:
        await caller.cancel(task)


@scene
async def webhook_delete(caller: Caller) -> Told:
    needs(caller, "delete_webhook")
    task = await begun(caller, "wait")
    try:
        await caller.add_webhook(task, {"id": "one", "url": "http://127.0.0.1:9/one"})
        await caller.delete_webhook(task, "one")
        return await error(caller.webhook(task, "one"))
    finally:
        await caller.cancel(task)


@scene
async def delivery(caller: Caller) -> Told:
    sink = Sink()
    given = {"id": "one", "url": sink.url, "token": "secret"}
    await caller.send(_text("count 2"), webhook=given)
    posts = await sink.ended()
    return {
        "type": sorted({post["headers"].get("content-type", "") for post in posts}),
        "token": sorted({post["headers"].get("x-a2a-notification-token", "") for post in posts}),
        "keys": sorted({_shape(post["body"]) for post in posts}),
        "last": post_state(posts[-1]["body"]),
    }


def _shape(body: Told) -> str:
    """Bare (with its kind) or wrapped (by which name)."""
    return str(body["kind"]) if "kind" in body else ",".join(sorted(body))


@scene
async def reply(caller: Caller) -> Told:
    return plain(await caller.send(_text("say hi")))


@scene
async def fail(caller: Caller) -> Told:
    return plain(await caller.send(_text("fail")))


@scene
async def extended(caller: Caller) -> Told:
    return await error(caller.extended_card())


@scene
async def refused(caller: Caller) -> Told:
    return await error(caller.send([]))


# ---- the play --------------------------------------------------------------------------------


def play(connect: Callable[[str, str], Awaitable[Caller]]) -> None:
    """Meet the agent at the URL over the binding, and print a line for each scene."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("binding", help="JSONRPC, HTTP+JSON or GRPC")
    parser.add_argument("scenes", nargs="*", help="all, if none is named")
    given = parser.parse_args()

    async def run() -> None:
        caller = await connect(given.url, given.binding)
        try:
            for name in given.scenes or SCENES:
                say({"scene": name, **await played(SCENES[name], caller)})
        finally:
            await caller.close()

    asyncio.run(run())


async def played(scene: Scene, caller: Caller) -> Told:
    """How a scene went."""
    try:
        async with asyncio.timeout(PATIENCE):
            return {"ok": True, "seen": await scene(caller)}
    except Absent:
        return {"ok": "absent", "seen": {}}
    except Exception as met:  # noqa: BLE001, a scene that fails is a result as well
        where = traceback.format_exc().splitlines()[-8:]
        return {"ok": False, "seen": {**fault(met), "where": where}}


def say(line: Told) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
