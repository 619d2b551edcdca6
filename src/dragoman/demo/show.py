"""Starts a registry and three agents, plans a trip with them, kills one, and shows what happens."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec

from dragoman.cli.colors import BLUE, BOLD, CYAN, GREEN, RED, YELLOW, paint
from dragoman.cli.terminal_format import plain, word
from dragoman.client import Result
from dragoman.client.sync import Client, Stream
from dragoman.model.errors import InvalidParams
from dragoman.model.types import Message, Part, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

PORTS = {"flight": 8001, "hotel": 8002, "travel": 8003}
REGISTRY = 8900
KEY = "DEMO_WALLET_KEY"
"""The variable with the key of the demo's wallet, which is made anew each time."""


def run(*, once: bool) -> int:
    """Run the demo and return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-demo-"))
            registry = stack.enter_context(Process(registry_command(folder), REGISTRY))
            title(f"A registry of agents at {registry.url}")
            urls: dict[str, str] = {}
            servers = {}
            for name, port in PORTS.items():
                command = agent_command(name, folder)
                server = Process(command, port, DEMO_REGISTRY=registry.url)
                servers[name] = stack.enter_context(server)
                urls[name] = server.url
                introduce(server.url)
                if name != "travel":
                    register(server.url, registry.url)
            book_hotel(urls["hotel"])
            plan_trip(urls["travel"], servers["flight"])
            urls |= pay_guide(stack, folder)
            if not once:
                show_more(urls, registry.url)
                say("\nThe agents keep running; press Ctrl-C to stop them.", BOLD)
                while True:
                    time.sleep(3600)
        say(
            "\nThe agents have stopped. Without --once they keep running, so that you can try "
            "them.",
            BOLD,
        )
    except KeyboardInterrupt:
        say("\nbye")
    return 0


DRAGOMAN = (sys.executable, "-m", "dragoman")
QUIET = ("--log-level", "error", "--set", "drain_timeout=1")


def agent_command(name: str, folder: str, module: str = "dragoman.demo.agents") -> tuple[str, ...]:
    """The command of an agent, with its tasks in a file."""
    store = f"sqlite:///{folder}/{name}.db"
    return (*DRAGOMAN, "serve", f"{module}:{name}", "--store", store, *QUIET)


def registry_command(folder: str) -> tuple[str, ...]:
    """The command of the registry."""
    store = f"sqlite:///{folder}/registry.db"
    return (*DRAGOMAN, "registry", "serve", "--store", store, *QUIET)


def introduce(url: str) -> None:
    """Print what the card of an agent says."""
    with Client.connect(url) as agent:
        title(f"{agent.card.name}: {agent.card.description}")
        for skill in agent.card.skills:
            say(f"  skill  {skill.id}: {skill.description}")
        say(f"  uses {agent.interface.protocol_binding} at {agent.interface.url}")


def register(url: str, registry: str) -> None:
    """Add an agent to the registry, and approve its card."""
    words = ("registry", "add", url, "--approve", "--registry", registry)
    say(f"  dragoman {' '.join(words)}", CYAN)
    subprocess.run((*DRAGOMAN, *words), check=True, stdout=subprocess.DEVNULL)


class Process:
    """A server in its own process."""

    process: subprocess.Popen[bytes]

    def __init__(self, command: Sequence[str], port: int, **variables: str) -> None:
        self.port = free(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [*command, "--port", str(self.port)]
        self._environment = {**os.environ, **variables}

    def __enter__(self) -> Process:
        self.start()
        return self

    def start(self) -> None:
        """Start the process, and wait until it responds."""
        # Ctrl-C must reach only this process, which then ends the agents.
        self.process = subprocess.Popen(
            self._command, env=self._environment, start_new_session=True
        )
        wait(self.process, self.url)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free(port: int) -> int:
    """This port, or another one if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


# No proxy: everything is on this machine.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server responds."""
    for _ in range(400):
        if process.poll() is not None:
            sys.exit(f"the server at {url} did not start")
        try:
            with opener.open(f"{url}/readyz", timeout=30):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    sys.exit(f"the server at {url} does not answer")


def book_hotel(url: str) -> None:
    """Call a typed skill, once correct and once with a mistake."""
    title("Book a hotel: a typed skill, and an error that names the field")
    with Client.connect(url) as agent:
        say("  you    book_hotel(city='Rome', nights=2)", CYAN)
        show(agent.call_skill("book_hotel", city="Rome", nights=2, returns=Result))
        say("  you    the same for 'five' nights", CYAN)
        try:
            agent.send({"city": "Rome", "nights": "five"})
        except InvalidParams as error:
            say(f"  error  {error}", RED)


def plan_trip(url: str, flight: Process) -> None:
    """Plan a trip with an agent that calls the other two; one of them is killed meanwhile."""
    title("Plan a trip: the travel agent asks the two others, and one is killed in the middle")
    with Client.connect(url) as agent:
        said = "Plan a trip to Lisbon for 5 nights"
        say(f"  you    {said}", CYAN)
        with agent.stream(said) as stream:
            follow(stream)
        task = stream.task
        assert task is not None
        said = "From 2026-08-10 to 2026-08-15"
        say(f"  you    {said}", CYAN)
        killed = False

        def disturb(event: TaskArtifactUpdateEvent) -> None:
            nonlocal killed
            if not killed and event.artifact.name == "itinerary":
                killed = True
                flight.kill()
                say("  kill -9 the flight agent, and start a new one on the same file", RED)
                flight.start()

        with agent.stream(said, task=task.id) as stream:
            follow(stream, disturb)
        show(stream.result)


def pay_guide(stack: ExitStack, folder: str) -> dict[str, str]:
    """Pay an agent twice from a wallet whose limit is enough for once, and return its URL; nothing
    without the extra `pay`. The facilitator is on this machine, and moves no money."""
    if find_spec("eth_account") is None:
        return {}
    from dragoman.demo.facilitator import PlayFacilitator
    from dragoman.demo.guide import SHOP
    from dragoman.payments import PaymentRefused, Wallet, payments

    title("Pay an agent: a facilitator on this machine moves play money, and the wallet has limits")
    facilitator = stack.enter_context(PlayFacilitator())
    command = agent_command("guide", folder, "dragoman.demo.guide")
    server = stack.enter_context(Process(command, 8004, DEMO_FACILITATOR=facilitator.url))
    os.environ[KEY] = f"0x{secrets.token_hex(32)}"
    wallet = Wallet(
        f"env:{KEY}",
        per_call="0.10 USDC",
        per_day="0.15 USDC",
        file=f"{folder}/wallet.json",
        receivers=SHOP,
    )
    with Client.connect(server.url, answer=wallet) as agent:
        say("  you    Lisbon, and at most 0.15 USDC a day", CYAN)
        result = agent.send("Lisbon")
        show(result)
        for receipt in payments(result):
            say(f"  paid   0.1 USDC on {receipt.network}: {receipt.transaction[:18]}...", GREEN)
        say("  you    Porto", CYAN)
        try:
            agent.send("Porto")
        except PaymentRefused as error:
            say(f"  wallet {error}", RED)
    return {"guide": server.url}


def follow(
    stream: Stream, on_artifact: Callable[[TaskArtifactUpdateEvent], None] | None = None
) -> None:
    """Show the events of a stream as they arrive."""
    for event in stream:
        if isinstance(event, TaskArtifactUpdateEvent):
            more = "+" if event.append else " "
            text = " ".join(words(part) for part in event.artifact.parts)
            say(f"  {more}      {event.artifact.name or '...'}: {text}", GREEN)
            if on_artifact is not None:
                on_artifact(event)
        elif isinstance(event, Task | TaskStatusUpdateEvent):
            said = event.status.message
            say(f"  agent  [{word(event.status.state)}] {one_line(said)}".rstrip(), YELLOW)


def show(result: Result) -> None:
    """Print the result."""
    assert result.task is not None
    say(f"  task   {result.task.id}: {word(result.task.status.state)}", BOLD)
    for artifact in result.artifacts:
        text = "; ".join(words(part) for part in artifact.parts)
        say(f"         {artifact.name or 'result'}: {text}", GREEN)


def one_line(message: Message | None) -> str:
    """Format a message on one line."""
    return " ".join(words(part) for part in message.parts) if message else ""


def words(part: Part) -> str:
    """Format a part on one line."""
    if part.text is None:
        return plain(part.data)
    return "; ".join(plain(line) for line in part.text.strip().splitlines())


def show_more(urls: dict[str, str], registry: str) -> None:
    """Print commands to try next."""
    title("Try it yourself")
    for command in (
        f"dragoman card {urls['travel']}",
        f"dragoman chat {urls['travel']}",
        f"dragoman send {urls['flight']} 'Book a flight from 2026-09-01 to 2026-09-08' --stream",
        f'dragoman send {urls["hotel"]} --data \'{{"city": "Rome", "nights": 2}}\' --trace',
        f"dragoman task list {urls['flight']}",
        f"curl {urls['flight']}/tasks",
        f"dragoman registry list --registry {registry}",
        *paying(urls),
    ):
        say(f"  {command}")


def paying(urls: dict[str, str]) -> list[str]:
    """Commands that pay the guide, if it is there."""
    if "guide" not in urls:
        return []
    from dragoman.demo.guide import SHOP

    send = f"dragoman send {urls['guide']} Porto"
    return [send, f"WALLET_KEY=$(openssl rand -hex 32) {send} --pay-max 0.10 --pay-to {SHOP}"]


def title(text: str) -> None:
    """Print a heading."""
    say(f"\n{text}", f"{BOLD};{BLUE}")


def say(text: str, style: str = "") -> None:
    """Print a line, in color on a terminal."""
    shown = paint(text, style, sys.stdout) if style else text
    sys.stdout.write(shown + "\n")
    sys.stdout.flush()
