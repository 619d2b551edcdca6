"""Start both agents on two ports, book with each over HTTP, kill one, and show what happens."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Any

COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
ids = count(1)


def main() -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after one round")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dragoman-demo-") as folder,
            Server("flight", 8001, folder) as flight,
            Server("hotel", 8002, folder) as hotel,
        ):
            show_card(flight.url)
            show_card(hotel.url)
            book_flight(flight.url)
            book_hotel(hotel.url)
            survive(flight)
            show_curl(flight.url, hotel.url)
            if not arguments.once:
                say("\nBoth agents stay up; Ctrl-C ends them.", "1")
                while True:
                    time.sleep(3600)
    except KeyboardInterrupt:
        say("\nbye")
    return 0


class Server:
    """One agent in a process of its own, with its tasks in a file."""

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, port: int, folder: str) -> None:
        self.port = free(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", "dragoman", "serve", f"demo.booking:{name}"),
            *("--port", str(self.port), "--store", f"sqlite:///{folder}/{name}.db"),
            *("--log-level", "error", "--set", "drain=1"),
        ]

    def __enter__(self) -> Server:
        self.start()
        return self

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # Ctrl-C is for us; we then end it
        self.process = subprocess.Popen(self._command, start_new_session=True)
        wait(self.process, self.url)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free(port: int) -> int:
    """This port, or another if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def wait(process: subprocess.Popen[bytes], url: str) -> None:
    """Until the agent answers."""
    for _ in range(200):
        if process.poll() is not None:
            sys.exit(f"the agent at {url} did not start")
        try:
            with get(f"{url}/readyz"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    sys.exit(f"the agent at {url} does not answer")


# No proxy of the environment: everything here is on this machine.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, **headers: str) -> Any:
    """An open response."""
    return opener.open(urllib.request.Request(url, headers=headers), timeout=30)


def post(url: str, body: dict[str, Any]) -> Any:
    """An open response."""
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    return opener.open(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30)


def message(part: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A user's message."""
    return {"messageId": f"m-{next(ids)}", "role": "ROLE_USER", "parts": [part], **fields}


def book_flight(url: str) -> None:
    """A streamed booking that is asked back for the dates."""
    title(f"Book a flight: HTTP+JSON, streamed from {url}/message:stream")
    asked = message({"text": "Book me a flight to Lisbon"})
    task = follow(url, asked)
    assert task is not None
    answer = message({"text": "From 2026-08-10 to 2026-08-15"}, taskId=task)
    follow(url, answer)
    with get(f"{url}/tasks/{task}") as response:
        show_task(json.load(response))


def follow(url: str, asked: dict[str, Any]) -> str | None:
    """Show the events of a stream as they arrive; the id of its task."""
    say(f"  you    {asked['parts'][0]['text']}", "36")
    task = None
    with post(f"{url}/message:stream", {"message": asked}) as response:
        for _, kind, event in events(response):
            task = task or event.get("id")
            show_event(kind, event)
    return task


def book_hotel(url: str) -> None:
    """A blocking booking with structured data."""
    title(f"Book a hotel: JSON-RPC, posted to {url}/")
    stay = {"city": "Lisbon", "nights": 5, "guests": 2}
    say(f"  you    {json.dumps(stay)}", "36")
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
    with post(f"{url}/", {**request, "params": {"message": message({"data": stay})}}) as response:
        show_task(json.load(response)["result"]["task"])
    wrong = {"message": message({"data": {"city": "Lisbon", "nights": "five"}})}
    with post(f"{url}/", {**request, "params": wrong}) as response:
        error = json.load(response)["error"]
    say("  and with a mistake in it:")
    say(f"  error  {error['code']}: {error['message']}", "31")


def survive(flight: Server) -> None:
    """A stream that is cut off by a crash, and goes on where it was."""
    title("Kill it: SIGKILL in the middle of a stream, and start it again")
    asked = message({"text": "Book me a flight from 2026-09-01 to 2026-09-08"})
    say(f"  you    {asked['parts'][0]['text']}", "36")
    place = ""
    with post(f"{flight.url}/message:stream", {"message": asked}) as response:
        for seen, kind, event in events(response):
            place = seen
            show_event(kind, event)
            if kind == "artifactUpdate":
                break
    flight.kill()
    say("  kill -9, and a new server on the same file", "31")
    flight.start()
    task = place.partition(":")[0]
    say(f"  you    go on after {place}", "36")
    resume = {"A2A-Extensions": "urn:dragoman:resume:v1", "Last-Event-ID": place}
    with get(f"{flight.url}/tasks/{task}:subscribe", **resume) as response:
        for _, kind, event in events(response):
            show_event(kind, event)
    with get(f"{flight.url}/tasks/{task}") as response:
        show_task(json.load(response))


def events(response: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The events of a stream: place, kind, content."""
    place = ""
    for line in response:
        if line.startswith(b"id: "):
            place = line[4:].decode().strip()
        elif line.startswith(b"data: "):
            ((kind, event),) = json.loads(line[6:]).items()
            yield place, kind, event


def show_card(url: str) -> None:
    """The card in a few lines."""
    with get(f"{url}/.well-known/agent-card.json") as response:
        card = json.load(response)
    title(f"{card['name']} {card['version']}: {card['description']}")
    for skill in card["skills"]:
        say(f"  skill  {skill['id']}: {skill['description']}")
    for interface in card["supportedInterfaces"]:
        say(f"  speaks {interface['protocolBinding']} at {interface['url']}")


def show_event(kind: str, event: dict[str, Any]) -> None:
    """One event of a stream, in a line."""
    if kind == "artifactUpdate":
        artifact = event["artifact"]
        text = " ".join(words(part) for part in artifact["parts"])
        more = "+" if event.get("append") else " "
        say(f"  {more}      {artifact.get('name') or '...'}: {text}", "32")
        return
    status = event["status"]
    state = status["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
    said = status.get("message")
    text = " ".join(words(part) for part in said["parts"]) if said else ""
    say(f"  agent  [{state}] {text}", "33")


def show_task(task: dict[str, Any]) -> None:
    """A finished task."""
    say(f"  task   {task['id']}: {task['status']['state']}", "1")
    for artifact in task.get("artifacts", []):
        text = "".join(words(part) for part in artifact["parts"])
        say(f"         {artifact.get('name', 'result')}: {text.strip()}".replace("\n", "; "), "32")


def words(part: dict[str, Any]) -> str:
    """A part as text."""
    found: str = part.get("text") or json.dumps(part.get("data"))
    return found.rstrip("\n") + ("\n" if found.endswith("\n") else "")


def show_curl(flight: str, hotel: str) -> None:
    """Commands to go on with."""
    title("Try it yourself")
    text = '{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"Book a flight"}]}}'
    data = '{"messageId":"m","role":"ROLE_USER","parts":[{"data":{"city":"Rome","nights":2}}]}'
    call = f'{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{{"message":{data}}}}}'
    for command in (
        f"curl {flight}/.well-known/agent-card.json",
        f"curl -N {flight}/message:stream -H 'Content-Type: application/json' -d '{text}'",
        f"curl {hotel}/ -H 'Content-Type: application/json' -d '{call}'",
        f"curl {flight}/tasks",
    ):
        say(f"  {command}")


def title(text: str) -> None:
    """A heading."""
    say(f"\n{text}", "1;34")


def say(text: str, style: str = "") -> None:
    """A line, in colour on a terminal."""
    if COLOUR and style:
        text = f"\033[{style}m{text}\033[0m"
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
