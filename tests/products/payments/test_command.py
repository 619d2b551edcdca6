"""`dragoman send`, `call`, `chat`, `task pay` and `mcp` with a wallet, and `dragoman wallet`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from msgspec.structs import replace

from dragoman import App
from dragoman.cli import main
from dragoman.client import PAUSE_EXTENSIONS, Client
from dragoman.payments import Price
from dragoman.payments.ledger import Ledger
from dragoman.payments.ledger_file import LedgerFile, load
from dragoman.payments.networks import BASE_SEPOLIA_USDC as USDC
from dragoman.security.card_keys import CardKey
from tests.cli.terminal import Terminal
from tests.harness.command import environment
from tests.harness.server import served, serving
from tests.products.mcp.clients import client, text
from tests.products.payments.loopback_facilitator import KEY, PAYER, SHOP, loopback_facilitator
from tests.products.payments.parts import Shop

PRICE = Price("0.10", USDC, to=SHOP)
OTHER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PAY = ("--pay-max", "0.50")
TO = ("--pay-to", SHOP)


class Selling:
    """A shop that sells for USDC, and the folder of the command."""

    def __init__(self, shop: Shop, url: str, folder: Path, node: Any) -> None:
        self.shop, self.url, self.folder, self.node = shop, url, folder, node
        self.ledger = folder / "dragoman" / f"wallet-{PAYER.lower()}.json"

    @property
    def paid(self) -> int:
        """How many payments were signed."""
        return len(load(self.ledger).payments)


@pytest.fixture
async def selling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Selling]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("WALLET_PER_DAY", "WALLET_FILE", "WALLET_NETWORKS"):
        monkeypatch.delenv(name, raising=False)
    async with loopback_facilitator(USDC) as found:
        shop = Shop(found, PRICE)
        async with served(shop.app) as server:
            yield Selling(shop, server.url, tmp_path, found)


async def command(*words: str) -> int:
    """Run it in a thread; its exit status."""
    return await asyncio.to_thread(main, words)


@pytest.mark.parametrize(
    "words", [["send", "tides"], ["send", "--stream", "tides"], ["send", "--json", "tides"]]
)
async def test_send(selling: Selling, words: list[str], capsys: Any) -> None:
    name, *more = words
    assert await command(name, selling.url, *more, *PAY, *TO) == 0
    out, err = capsys.readouterr()
    if "--json" not in more:  # what the agent says of the payment is no part of its answer
        assert out == "All about tides\n"
        assert f"Paid 0.1 USDC on base-sepolia to {SHOP}\n" in err
    assert "All about tides" in out
    assert "(Payment of 0.1 USDC for task " in err and KEY[2:] not in out + err
    assert (selling.paid, selling.shop.kinds) == (1, ["settled"])
    assert load(selling.ledger).limits == ("0.5 USDC", "0.5 USDC")


async def test_call(selling: Selling, capsys: Any) -> None:
    words = [*PAY, *TO, selling.url, "analyze", "--data", "{}"]
    assert await command("call", *words) == 0
    assert "All about" in capsys.readouterr().out and selling.paid == 1


async def test_chat(selling: Selling, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["tides", "waves", "winds"])

    def read(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    words = ["--pay-max", "0.20", *TO]
    assert await command("chat", selling.url, *words) == 5
    out, err = capsys.readouterr()
    told = [line for line in out.split("\n") if "All" in line]
    assert told == ["All about tides", "All about waves"]
    assert "nothing was paid: the agent asks for 0.1 USDC; 0.2 USDC are counted already" in err
    assert "the limit of --pay-per-day is 0.2 USDC" in err
    assert selling.shop.worked == ["tides", "waves"]


async def test_a_task_that_waits_is_paid_later(selling: Selling, capsys: Any) -> None:
    assert await command("send", selling.url, "tides") == 5
    async with Client.connect(selling.url, extensions=PAUSE_EXTENSIONS) as agent:
        (task,) = [task async for task in agent.list()]
    assert await command("task", "pay", selling.url, task.id) == 5
    assert await command("task", "pay", selling.url, task.id, *PAY, *TO) == 0
    assert await command("task", "pay", selling.url, task.id, *PAY, *TO) == 2
    assert "the task does not ask for a payment" in capsys.readouterr().err
    assert (selling.paid, selling.shop.worked) == (1, ["tides"])


async def test_limits(
    selling: Selling, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await command("send", selling.url, "x", "--pay-max", "0.09", *TO) == 5
    assert "the limit of --pay-max is 0.09 USDC" in capsys.readouterr().err
    monkeypatch.setenv("WALLET_PER_DAY", "0.20")
    for status in (0, 0, 5):  # other processes count, too
        assert await command("send", selling.url, "x", *PAY, *TO) == status
    assert "the limit of --pay-per-day is 0.2 USDC" in capsys.readouterr().err
    more = ("--pay-per-day", "0.30 USDC")
    assert await command("send", selling.url, "x", *PAY, *TO, *more) == 0


async def test_receivers(selling: Selling, capsys: pytest.CaptureFixture[str]) -> None:
    assert await command("send", selling.url, "x", *PAY) == 5
    err = capsys.readouterr().err
    assert "the receiver is not known: name it with --pay-to, or approve it on a terminal" in err
    assert await command("send", selling.url, "x", *PAY, "--pay-to", OTHER) == 5
    err = capsys.readouterr().err
    assert f"asks for 0.1 USDC to {SHOP}, and only {OTHER.lower()} may be paid" in err
    assert not selling.ledger.exists() and selling.shop.worked == []


async def test_a_pinned_key_vouches_for_no_receiver(selling: Selling, capsys: Any) -> None:
    file = selling.folder / "key.pem"
    file.write_bytes(CardKey.generate().pem())
    async with serving(App(selling.shop.agent, card_keys=(str(file),))) as url:
        assert await command("send", url, "x", "--pin", *PAY) == 5
    assert "the receiver is not known" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["y", "n"])
async def test_the_terminal_asks(selling: Selling, answer: str) -> None:
    words = ("send", selling.url, "tides", *PAY)

    def talk() -> int:
        with Terminal(*words, home=selling.folder, environment={"WALLET_KEY": KEY}) as terminal:
            asked = terminal.expect("[y/N] ")
            assert f"Pay 0.1 USDC on eip155:84532 to {SHOP}, for Shop at {selling.url}" in (
                asked.replace("\n", "")
            )
            terminal.line(answer)
            return terminal.ended()

    assert await asyncio.to_thread(talk) == (0 if answer == "y" else 5)
    assert selling.shop.worked == (["tides"] if answer == "y" else [])
    if answer == "y":  # and not for a second time
        more = ("--pay-per-day", "1")
        assert await command("send", selling.url, "waves", *PAY, *more) == 0


async def test_ctrl_c_while_it_asks(selling: Selling) -> None:
    words = ("send", selling.url, "tides", *PAY)

    def talk() -> int:
        with Terminal(*words, home=selling.folder, environment={"WALLET_KEY": KEY}) as terminal:
            terminal.expect("[y/N] ")
            terminal.type("\x03")
            return terminal.ended()

    assert await asyncio.to_thread(talk) == 130
    assert selling.shop.worked == [] and not selling.ledger.exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--pay-max", "1,50"], "--pay-max '1,50': expected an amount, such as 0.50"),
        (["--pay-max", "-1"], "--pay-max"),
        (["--pay-max", "0.50", "--pay-per-day", "x"], "--pay-per-day 'x': expected an amount"),
        (["--pay-max", "1", "--pay-per-day", "5 EURC"], "--pay-per-day: must be in USDC"),
        (["--pay-max", "1", "--pay-to", "0x1"], "--pay-to '0x1': expected an address"),
        (["--pay-max", "1", "--pay-network", "moon"], "--pay-network: 'moon' is no EVM network"),
        (["--pay-max", "1 EURC"], "--pay-network: the contract of 'EURC' on 'base-sepolia'"),
        (["--pay-max", "1", "--wallet-key", "env:NO"], "--wallet-key: the environment has no "),
        (["--pay-max", "1", "--wallet-key", KEY], "--wallet-key: name a variable"),
        (["--pay-max", "1", "--wallet", "sqlite:///x.db"], "--wallet: expected postgresql://"),
        (["--pay-to", SHOP], "--pay-to: has no effect without --pay-max"),
    ],
)
def test_wrong_options(words: list[str], why: str, capsys: Any) -> None:
    try:
        status = main(["send", "http://127.0.0.1:9", "hello", *words])
    except SystemExit as error:  # argparse takes -1 for an option
        status = int(str(error.code))
    err = capsys.readouterr().err
    assert (status, why in err) == (2, True), err
    assert KEY[2:] not in err


async def test_a_ledger_that_cannot_be_used(selling: Selling, capsys: Any) -> None:
    selling.ledger.parent.mkdir()
    selling.ledger.write_text("{")
    selling.ledger.chmod(0o600)
    assert await command("send", selling.url, "x", *PAY, *TO) == 5
    assert "nothing was paid: the wallet's file" in capsys.readouterr().err


async def test_mcp(selling: Selling) -> None:
    words = ["-m", "dragoman", "mcp", selling.url, "--pay-max", "0.15", *TO]
    own = environment(WALLET_KEY=KEY, XDG_STATE_HOME=str(selling.folder))
    parameters = StdioServerParameters(command=sys.executable, args=words, env=own)
    async with client(parameters) as found:
        first = await found.call_tool("analyze", {"message": "tides"})
        second = await found.call_tool("analyze", {"message": "waves"})
    assert text(first) == "All about tides"
    assert "limit of --pay-per-day is 0.15 USDC" in text(second)


async def test_no_signature_in_a_trace(selling: Selling, capsys: Any) -> None:
    assert await command("send", selling.url, "x", *PAY, *TO, "--trace") == 0
    err = capsys.readouterr().err
    (signed,) = load(selling.ledger).payments
    assert "payment-submitted" in err and signed.authorization.nonce in err
    assert signed.signature[2:] not in err and KEY[2:] not in err


async def test_the_card_has_the_price(selling: Selling, capsys: Any) -> None:
    assert await command("card", selling.url) == 0
    assert f"    costs 0.1 USDC on eip155:84532 to {SHOP}\n" in capsys.readouterr().out


# ---- dragoman wallet


async def test_an_empty_wallet(selling: Selling, capsys: Any) -> None:
    assert await command("wallet") == 0
    out = capsys.readouterr().out
    assert f"address   {PAYER}\n" in out and f"kept in   {selling.ledger}\n" in out
    assert "limits    nothing was paid yet\n" in out
    assert not selling.ledger.exists()


async def test_what_the_wallet_shows(selling: Selling, capsys: Any) -> None:
    assert await command("send", selling.url, "x", *PAY, *TO) == 0
    capsys.readouterr()
    node = ("--rpc", f"{selling.node.url}/rpc")
    assert await command("wallet", *node) == 0
    out = capsys.readouterr().out
    assert "limits    0.5 USDC for a task, 0.5 USDC in 24 hours, at the last payment\n" in out
    assert "24 hours  0.1 USDC\n" in out
    assert "balance   99.9 USDC on base-sepolia\n" in out
    header, row = out.splitlines()[-2:]
    assert header.split() == ["time", "amount", "network", "to", "agent", "task", "state"]
    assert row.split()[2:] == [
        *("0.1", "USDC", "base-sepolia", SHOP, selling.url),
        *(load(selling.ledger).payments[0].task, "signed"),
    ]
    assert await command("wallet", *node, "--json", "--address", PAYER) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["balances"] == [{"amount": "99.9 USDC", "network": "base-sepolia"}]
    assert [one["state"] for one in found["payments"]] == ["signed"]
    assert "signature" not in str(found)


async def test_the_wallet_asks_the_chain(selling: Selling, capsys: Any) -> None:
    for name in ("x", "y"):
        assert await command("send", selling.url, name, *PAY, *TO) == 0

    def expire(found: Ledger) -> None:
        for one in found.payments:
            one.authorization = replace(one.authorization, valid_before=1)

    await LedgerFile(selling.ledger).change(expire)
    signed = load(selling.ledger).payments[1].authorization
    del selling.node.chain.used[PAYER.lower(), signed.nonce]
    selling.node.chain.mined.popitem()
    capsys.readouterr()
    assert await command("wallet", "--rpc", f"{selling.node.url}/rpc") == 0
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()[-2:]] == ["unused", "settled"]
    assert "24 hours  0.1 USDC\n" in out
    assert "1 payment expired unused" in err


async def test_a_node_that_is_away(selling: Selling, capsys: Any) -> None:
    assert await command("wallet", "--rpc", "http://127.0.0.1:9") == 3
    assert "--rpc: the node gave no answer" in capsys.readouterr().err
    for words in (["--rpc", "ftp://x"], ["--address", "x"], ["--limit", "-1"]):
        assert await command("wallet", *words) == 2


def test_a_plain_command_loads_no_payments() -> None:
    code = (
        "import sys; from dragoman.cli import main; "
        "assert main(['send', 'http://127.0.0.1:9', 'x']) == 3; "
        "assert not [name for name in sys.modules if name.startswith('dragoman.payments')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL, timeout=60)
