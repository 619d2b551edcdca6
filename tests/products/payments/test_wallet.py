"""The limits of a wallet, and its file."""

from __future__ import annotations

import asyncio
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from x402.mechanisms.evm.default_assets import DEFAULT_ASSETS

from dragoman import (
    Agent,
    AgentCard,
    AgentExtension,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from dragoman.client import PausedTask
from dragoman.model.types import AgentCapabilities
from dragoman.payments import (
    Asset,
    Facilitator,
    Merchant,
    PaymentRefused,
    Price,
    Signer,
    Wallet,
)
from dragoman.payments.extension import PAYLOAD, RECEIPTS, REQUIRED, STATUS, URIS
from dragoman.payments.ledger_file import load
from dragoman.payments.networks import BASE_SEPOLIA_USDC, KNOWN, TEST_ASSETS
from dragoman.payments.objects import Offer, offer_object, read_payload
from dragoman.payments.signing import key_signer, signer_of
from tests.products.payments.loopback_facilitator import KEY, PAYER, SHOP, TOKEN
from tests.products.payments.parts import PRICE, wallet

OTHER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PAID = {RECEIPTS: [{"success": True, "transaction": "0x1", "network": "eip155:31337"}]}

_shop = Agent("Shop", description="Sells.")
_shop.handler(print)
CARD = _shop.card("http://inside")


def paused(
    price: Any = PRICE,
    *,
    task: str = "t-1",
    message: str = "m-1",
    url: str = "http://inside/",
    version: int = 1,
    verified: bool = False,
    card: AgentCard | None = None,
    resource: str = "",
    **said: Any,
) -> PausedTask:
    required = price._requirement(resource=resource) if isinstance(price, Price) else price
    metadata = {
        STATUS: "payment-required",
        REQUIRED: offer_object(Offer((required,), version)),
        **said,
    }
    asked = Message(
        message_id=message,
        role=Role.AGENT,
        parts=(Part(text="Pay"),),
        metadata=metadata,
        extensions=(URIS["0.2"],),
    )
    status = TaskStatus(state=TaskState.INPUT_REQUIRED, message=asked)
    found = Task(id=task, context_id="c", status=status)
    return PausedTask(found, card or CARD, url, verified)


def payload(message: Message | None) -> Any:
    assert message is not None and message.metadata is not None
    return read_payload(message.metadata[PAYLOAD])


@pytest.mark.parametrize("version", [1, 2])
async def test_what_is_sent(tmp_path: Path, version: int) -> None:
    paying = wallet(tmp_path)
    message = await paying.answer(paused(version=version))
    found = payload(message)
    assert message is not None and message.extensions == (URIS["0.2"],)
    assert (found.version, found.authorization.value) == (version, 100_000)
    assert signer_of(found, PRICE._requirement()) == PAYER
    assert found.authorization.valid_before - load(paying.file).payments[0].at <= 601
    # stored before it is sent, and readable by its owner only
    assert stat.S_IMODE(paying.file.stat().st_mode) == 0o600
    assert load(paying.file).payments[0].signature == found.signature


async def test_the_same_offer_gets_the_same_payment(tmp_path: Path) -> None:
    first = await wallet(tmp_path).answer(paused())
    again = await wallet(tmp_path).answer(paused())  # another process
    assert first == again
    assert len(load(tmp_path / "wallet.json").payments) == 1
    other = await wallet(tmp_path).answer(paused(task="t-2"))
    assert payload(other).authorization.nonce != payload(first).authorization.nonce


async def test_an_agent_that_asks_again_gets_the_same_payment(tmp_path: Path) -> None:
    """Else it could carry out both: the first one is valid until it expires."""
    paying = wallet(tmp_path)
    first = await paying.answer(paused())
    failed = {RECEIPTS: [{"success": False, "transaction": "", "network": ""}]}
    again = await paying.answer(paused(message="m-2", **failed))
    assert first is not None and again is not None and first.message_id != again.message_id
    assert payload(first) == payload(again)
    # also if the offer differs in what is not signed
    for more in ({"timeout": 300}, {"extra": {"tier": "fast"}}, {"description": "Please"}):
        other = await paying.answer(paused(replace(PRICE._requirement(), **more), message="m-6"))
        assert payload(other).authorization == payload(first).authorization
    # another amount, or one after a payment that was carried out, is another payment
    raised = await paying.answer(paused(Price("0.11", TOKEN, to=SHOP), message="m-3"))
    paid = await paying.answer(paused(message="m-4", **PAID))
    signed = load(paying.file).payments
    assert [one.authorization for one in signed[1:]] == [
        payload(raised).authorization,
        payload(paid).authorization,
    ]
    signed[0].authorization = replace(signed[0].authorization, valid_before=1)
    paying.file.write_bytes(msgspec.json.encode({"payments": signed, "receivers": {}}))
    late = await paying.answer(paused(message="m-5"))
    assert payload(late).authorization.nonce not in {one.authorization.nonce for one in signed}


async def test_a_crash_before_the_signature(tmp_path: Path) -> None:
    async def crash(data: Any) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await wallet(tmp_path, key=Signer(PAYER, crash)).answer(paused())
    (counted,) = load(tmp_path / "wallet.json").payments
    assert (counted.signature, counted.amount) == ("", 100_000)
    message = await wallet(tmp_path).answer(paused())
    assert payload(message).authorization == counted.authorization
    assert len(load(tmp_path / "wallet.json").payments) == 1


async def test_a_signer_elsewhere(tmp_path: Path) -> None:
    """It gets what it signs, and the wallet has no key."""
    asked: list[Any] = []
    signer = key_signer("env:WALLET_KEY")

    async def sign(data: Any) -> str:
        asked.append(data)
        return await signer._sign(data)

    message = await wallet(tmp_path, key=Signer(PAYER, sign)).answer(paused())
    assert signer_of(payload(message), PRICE._requirement()) == PAYER
    (data,) = asked
    assert data["primaryType"] == "TransferWithAuthorization"
    assert (data["domain"]["chainId"], data["message"]["to"]) == (31337, SHOP)


@pytest.mark.parametrize("signature", [None, "", "0x12", "12" * 65, "0x" + "zz" * 65])
async def test_a_signer_that_returns_no_signature(tmp_path: Path, signature: Any) -> None:
    async def sign(data: Any) -> Any:
        return signature

    with pytest.raises(PaymentRefused, match="no signature in hexadecimal"):
        await wallet(tmp_path, key=Signer(PAYER, sign)).answer(paused())
    (counted,) = load(tmp_path / "wallet.json").payments
    assert counted.signature == ""


async def test_the_usual_assets_are_of_test_networks(tmp_path: Path) -> None:
    usual = Wallet(
        key="env:WALLET_KEY",
        per_call="1 USDC",
        per_day="1 USDC",
        file=tmp_path / "wallet.json",
        receivers=SHOP,
    )
    assert {asset.network for asset in TEST_ASSETS} == {"eip155:84532", "eip155:421614"}
    for number, asset in enumerate(KNOWN):
        found = paused(Price("0.10", asset, to=SHOP), task=f"t-{number}")
        if asset in TEST_ASSETS:
            assert await usual.answer(found) is not None
        else:
            with pytest.raises(PaymentRefused, match="none of this wallet's assets"):
                await usual.answer(found)


def test_known_assets() -> None:
    for asset in KNOWN:
        (known,) = DEFAULT_ASSETS[asset.network][:1]
        assert (asset.symbol, asset.address, asset.name, asset.version, asset.decimals) == tuple(
            known[name] for name in ("symbol", "asset", "name", "version", "decimals")
        )


async def test_many_at_once(tmp_path: Path) -> None:
    async def one(number: int) -> bool:
        try:
            await wallet(tmp_path, per_day="0.50 TEST").answer(paused(task=f"t-{number}"))
        except PaymentRefused:
            return False
        return True

    paid = await asyncio.gather(*(one(number) for number in range(12)))
    assert paid.count(True) == 5
    assert sum(one.amount for one in load(tmp_path / "wallet.json").payments) == 500_000


@pytest.mark.parametrize(
    ("options", "tasks", "why"),
    [
        ({"per_call": "0.25 TEST"}, ["a", "a", "a"], "0.2 TEST are counted.*per_call is 0.25"),
        ({"per_call": "0.09 TEST"}, ["a"], "asks for 0.1 TEST.*per_call is 0.09"),
        ({"per_day": "0.25 TEST"}, ["a", "b", "c"], "0.2 TEST are counted.*per_day is 0.25"),
        ({"per_day": "5 USDC", "assets": [TOKEN, BASE_SEPOLIA_USDC]}, ["a"], "per_day is 5 USDC"),
        ({"per_call": "0 TEST"}, ["a"], "per_call is 0 TEST"),
    ],
)
async def test_limits(tmp_path: Path, options: Any, tasks: list[str], why: str) -> None:
    paying = wallet(tmp_path, **options)
    *before, last = enumerate(tasks)
    for number, task in before:
        await paying.answer(paused(task=task, message=f"m-{number}", **(PAID if number else {})))
    with pytest.raises(PaymentRefused, match=why):
        more = {RECEIPTS: PAID[RECEIPTS] * len(before)}
        await paying.answer(paused(task=last[1], message="last", **more))
    known = load(paying.file).payments if paying.file.exists() else []
    assert len(known) == len(before)


async def test_a_day_later(tmp_path: Path) -> None:
    paying = wallet(tmp_path, per_day="0.10 TEST")
    await paying.answer(paused(task="a"))
    found = load(paying.file)
    found.payments[0].at -= 24 * 3600 + 1
    assert (await paying.limits()).counted == ("0.1 TEST",)
    paying.file.write_bytes(msgspec.json.encode(found))
    assert (await paying.limits()).counted == ()
    assert await paying.answer(paused(task="b")) is not None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"receivers": {"analyst.example": SHOP}}, "'analyst.example' is not the URL of an agent"),
        ({"receivers": {"https://a.example": "0x12"}}, "'0x12' is not an address"),
        ({"receivers": "shop"}, "'shop' is not an address"),
        ({"per_call": "1 USDT"}, "per_call: 'USDT' is none of the assets: TEST"),
        ({"per_day": "1 test"}, "per_day: 'test' is none of the assets: TEST"),
    ],
)
def test_what_could_never_pay(tmp_path: Path, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        wallet(tmp_path, **options)


async def test_the_ledger_stays_small(tmp_path: Path) -> None:
    """The id of a task is the agent's: a long one would be stored with each payment."""
    paying = wallet(tmp_path)
    with pytest.raises(PaymentRefused, match="the id of its task is longer than 500 characters"):
        await paying.answer(paused(task="t" * 501))
    assert not paying.file.exists()
    assert await paying.answer(paused(task="t" * 500)) is not None


@pytest.mark.parametrize("limit", ["", "0.5", "USDC", "-1 USDC", "nan USDC", "x USDC", None, 1])
def test_without_a_limit_there_is_no_wallet(tmp_path: Path, limit: Any) -> None:
    for name in ("per_call", "per_day"):
        with pytest.raises(ValueError):
            wallet(tmp_path, **{name: limit})
    with pytest.raises(TypeError):
        Wallet(key="env:WALLET_KEY", per_call="1 USDC")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "price",
    [
        Price("0.10", Asset("TEST", "eip155:31337", OTHER, "Test Dollar", "1"), to=SHOP),
        Price("0.10", replace(TOKEN, network="eip155:8453"), to=SHOP),
        Price("0.10", replace(TOKEN, name="Other"), to=SHOP),
        Price("0.10", "USDC", network="base", to=SHOP),
        replace(PRICE._requirement(), scheme="upto"),
    ],
    ids=["contract", "network", "domain", "real money", "scheme"],
)
async def test_other_assets_and_networks(tmp_path: Path, price: Any) -> None:
    with pytest.raises(PaymentRefused, match="none of this wallet's assets"):
        await wallet(tmp_path).answer(paused(price))


async def test_a_receiver_must_be_known(tmp_path: Path) -> None:
    asked: list[Any] = []

    async def approve(proposed: Any) -> bool:
        asked.append(proposed)
        return bool(proposed.to == SHOP)

    with pytest.raises(PaymentRefused, match="the receiver is not known"):
        await wallet(tmp_path, receivers={}).answer(paused())
    paying = wallet(tmp_path, receivers={}, on_payment=approve)
    assert await paying.answer(paused()) is not None
    assert (asked[0].agent, asked[0].amount, asked[0].before) == ("Shop", "0.1 TEST", "")
    # it is kept, for this agent only
    assert await wallet(tmp_path, receivers={}).answer(paused(message="m-2")) is not None
    with pytest.raises(PaymentRefused, match="the receiver is not known"):
        await wallet(tmp_path, receivers={}).answer(paused(url="http://other/"))
    changed = paused(Price("0.10", TOKEN, to=OTHER), message="m-3")
    with pytest.raises(PaymentRefused, match=f"was {SHOP.lower()} before"):
        await paying.answer(changed)
    assert asked[-1].before == SHOP.lower()
    for given in ({"http://inside": SHOP}, SHOP):  # fixed
        with pytest.raises(PaymentRefused, match=f"only {SHOP.lower()} may be paid"):
            await wallet(tmp_path, receivers=given, on_payment=lambda _: True).answer(changed)


async def test_a_signed_card_names_the_receiver(tmp_path: Path) -> None:
    prices = {"analyze": {"payTo": SHOP}}
    extension = AgentExtension(uri=URIS["0.2"], params={"prices": prices})
    card = replace(CARD, capabilities=AgentCapabilities(extensions=(extension,)))
    paying = wallet(tmp_path, receivers={})
    with pytest.raises(PaymentRefused, match="not known"):
        await paying.answer(paused(card=card))
    with pytest.raises(PaymentRefused, match="not known"):
        await paying.answer(paused(Price("0.10", TOKEN, to=OTHER), card=card, verified=True))
    assert await paying.answer(paused(card=card, verified=True)) is not None


@pytest.mark.parametrize(
    "resource",
    [
        "https://bank.example/x",
        "//bank.example/x",
        "https://inside/x",
        "http://inside:81/x",
        "http://inside@bank.example/x",
        "http://inside.bank.example/x",
        "http://inside:99999999/x",
        "http://[inside/x",
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_an_offer_for_another_origin(tmp_path: Path, resource: str, version: int) -> None:
    with pytest.raises(PaymentRefused, match="for something at another origin: "):
        await wallet(tmp_path).answer(paused(resource=resource, version=version))
    assert not (tmp_path / "wallet.json").exists()


@pytest.mark.parametrize(
    "resource", ["http://inside/x", "HTTP://Inside:80/", "/x", "x", "", "urn:skill:analyze"]
)
async def test_an_offer_for_this_origin(tmp_path: Path, resource: str) -> None:
    found = paused(resource=resource, url="http://me:secret@inside:80/")
    assert await wallet(tmp_path).answer(found) is not None
    assert "secret" not in (tmp_path / "wallet.json").read_text()


async def test_other_pauses_are_left_to_the_caller(tmp_path: Path) -> None:
    paying = wallet(tmp_path)
    assert await paying.answer(paused(**{STATUS: "payment-failed"})) is None
    with pytest.raises(PaymentRefused, match="AP2"):
        found = paused()
        assert found.task.status.message is not None
        message = replace(found.task.status.message, metadata={STATUS: "payment-required"})
        status = replace(found.task.status, message=message)
        await paying.answer(replace(found, task=replace(found.task, status=status)))
    with pytest.raises(PaymentRefused, match="cannot be read"):
        await paying.answer(paused(**{REQUIRED: {"x402Version": 1, "accepts": [{}]}}))


def test_a_key_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paying = wallet(tmp_path)
    shown = f"{paying!r} {paying.__dict__} {key_signer('env:WALLET_KEY')!r}"
    assert KEY[2:] not in shown
    monkeypatch.setenv("WALLET_KEY", KEY + "zz")
    with pytest.raises(ValueError, match="no private key") as error:
        wallet(tmp_path)
    assert KEY[2:] not in repr(error.value) and error.value.__cause__ is None
    assert error.value.__context__ is None
    with pytest.raises(ValueError, match="no variable 'MISSING'"):
        wallet(tmp_path, key="env:MISSING")
    with pytest.raises(ValueError, match="name a variable") as error:
        wallet(tmp_path, key=KEY)
    assert KEY[2:] not in str(error.value)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "eth_account.messages", None)
    for make in (
        lambda: wallet(tmp_path),
        lambda: Merchant(Facilitator("https://facilitator.example")),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'dragoman\[pay\]'"):
            make()


def test_loading_it_keeps_the_recursion_limit() -> None:
    code = (
        "import sys; from dragoman.payments.signing import check_installed; "
        "before = sys.getrecursionlimit(); check_installed(); "
        "assert 'py_ecc' in sys.modules; sys.exit(sys.getrecursionlimit() != before)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
