"""The wallet: pays for tasks of other agents, within limits."""

from __future__ import annotations

import copy
import inspect
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman import Message, Part, Role
from dragoman.client import AnswerRefused, PausedTask
from dragoman.payments.chain import Chain
from dragoman.payments.extension import (
    PAYLOAD,
    REQUIRED,
    STATUS,
    URIS,
    PaymentStatus,
    active,
    metadata,
    prices,
    receipts,
)
from dragoman.payments.facilitator import NoAnswer
from dragoman.payments.ledger import (
    DAY,
    Ledger,
    Signed,
    SignedPayment,
    WalletLimits,
    digest,
    shown_amount,
    signed_payment,
)
from dragoman.payments.networks import TEST_ASSETS, Asset, network_of
from dragoman.payments.objects import (
    SCHEME,
    Authorization,
    MalformedObject,
    Offer,
    Payload,
    Receipt,
    Requirement,
    payload_object,
    read_offer,
)
from dragoman.payments.signing import Signer, key_signer, new_nonce, sign
from dragoman.payments.wallet_options import (
    by_origin,
    ledger_place,
    limit,
    origin_of,
    receiver,
    usual_file,
)

logger = logging.getLogger("dragoman.payments")

LONGEST = 600
"""The longest time in seconds for which an authorization is valid."""
LONGEST_ID = 500
"""The most characters of the id of a task."""
SIGNATURE = re.compile(r"0x(?:[0-9a-fA-F]{2}){64,8192}")
ADVICE = "name it in `receivers`, or approve it in `on_payment`"
ASKED_AT_ONCE = 100
"""How many payments the chain is asked about at once, the latest first."""


class PaymentRefused(AnswerRefused):
    """The wallet does not pay. The text has the price and the reason."""


class ProposedPayment(Struct, frozen=True):
    """A payment to a receiver that the wallet does not know yet."""

    url: str
    """The URL of the agent."""
    agent: str
    """The name on its card."""
    amount: str
    """The amount and the asset, such as `0.1 USDC`."""
    network: str
    to: str
    before: str = ""
    """The receiver that was known before, if the agent now names another one."""


OnPayment = Callable[[ProposedPayment], bool | Awaitable[bool]]


class Wallet:
    """Pays for tasks: `Client.connect(url, answer=Wallet(key="env:WALLET_KEY", …))`.

    `per_call` is the most for one task, `per_day` the most in 24 hours, such as `"0.50 USDC"`; both
    are needed. `file` has what was signed, or the PostgreSQL database `store`; all processes that
    use the key must share it. `assets` is what it pays with: by default, USDC on test networks.
    `receivers` names the address of an agent's origin, or is the only address that is paid; the
    address of another agent is asked of `on_payment`, and then kept. An agent whose signed card
    names the receiver is not asked about. With `chains`, a node of each network, a payment that has
    expired and was not carried out does not count any more.
    """

    def __init__(
        self,
        key: str | Signer,
        *,
        per_call: str,
        per_day: str,
        file: str | Path | None = None,
        store: str = "",
        assets: Sequence[Asset] = TEST_ASSETS,
        receivers: Mapping[str, str] | str | None = None,
        on_payment: OnPayment | None = None,
        chains: Mapping[str, Chain] | None = None,
    ) -> None:
        self._signer = key_signer(key) if isinstance(key, str) else key
        self.address = self._signer.address
        symbols = {asset.symbol for asset in assets}
        self._per_call = limit("per_call", per_call, symbols)
        self._per_day = limit("per_day", per_day, symbols)
        self._assets = {(asset.network, asset.address.lower()): asset for asset in assets}
        self._per_task: tuple[tuple[Decimal, str], ...] = ()
        self._only = receiver(receivers) if isinstance(receivers, str) and receivers else ""
        self._given = by_origin(receivers if isinstance(receivers, Mapping) else {})
        self._on_payment = on_payment
        self._chains = {network_of(name): chain for name, chain in (chains or {}).items()}
        if store and file is not None:
            raise ValueError("Wallet: give file or store, not both")
        self.file = None if store else Path(file) if file is not None else usual_file(self.address)
        self._ledger = ledger_place(self.address, self.file, store)

    def __repr__(self) -> str:
        return f"Wallet({self.address})"

    def part(self, most: str) -> Wallet:
        """Return this wallet for the clients of turns (`turn.connect`, bridges, an orchestrator):
        it pays at most this amount on behalf of one task, such as `0.50 USDC`, also if the task
        runs again. The limits of the whole wallet apply, too. Raises ValueError."""
        symbols = {asset.symbol for asset in self._assets.values()}
        found = copy.copy(self)
        found._per_task = (*self._per_task, limit("part", most, symbols))
        return found

    @property
    def extensions(self) -> Sequence[str]:
        """See `dragoman.client.Answerer`."""
        return tuple(URIS.values())

    async def answer(self, paused: PausedTask) -> Message | None:
        """Pay for a task that asks for a payment. Raises PaymentRefused. See
        `dragoman.client.Answerer`."""
        question = paused.task.status.message
        said = metadata(question)
        if question is None or said.get(STATUS) != PaymentStatus.REQUIRED:
            return None
        if REQUIRED not in said:
            raise PaymentRefused("the agent asks for a payment inside of another protocol (AP2)")
        try:
            offer = read_offer(said[REQUIRED])
        except MalformedObject as error:
            raise PaymentRefused(f"the agent's offer cannot be read: {error}") from None
        if len(paused.task.id) > LONGEST_ID:  # the ledger keeps it
            raise PaymentRefused(
                f"the agent asks for a payment, and the id of its task is longer than {LONGEST_ID} "
                "characters"
            )
        required, asset = self._choose(offer)
        _check_origin(required, paused.url, asset)
        await self._check_receiver(required, asset, paused)
        # the same while it is not paid: an agent may ask again and again
        paid = sum(receipt.success for receipt in receipts(paused.task))
        to = (required.network, required.asset.lower(), required.pay_to.lower())
        about = [paused.task.id, *to, required.amount, paid]
        offered = digest(origin_of(paused.url), *about)
        payload = await self._pay(offered, required, asset, offer.version, paused)
        return Message(
            message_id=f"x402-{digest(offered, question.message_id)[:32]}",
            role=Role.USER,
            parts=(Part(text=f"Payment of {asset.shown(required.amount)}"),),
            metadata={
                STATUS: PaymentStatus.SUBMITTED.value,
                PAYLOAD: payload_object(payload),
            },
            extensions=(active(question.extensions) or next(iter(URIS.values())),),
        )

    # -- what is paid

    def _choose(self, offer: Offer) -> tuple[Requirement, Asset]:
        """The first way to pay that this wallet can and may use."""
        for required in offer.accepts:
            asset = self._assets.get((required.network, required.asset.lower()))
            domain = (required.name, required.domain_version)
            fits = asset is not None and domain in (("", ""), (asset.name, asset.version))
            if asset is not None and fits and required.scheme == SCHEME and required.amount > 0:
                return required, asset
        first = offer.accepts[0]
        raise PaymentRefused(
            f"the agent asks for {first.amount} units of {first.asset} on {first.network}, which "
            "is none of this wallet's assets"
        )

    async def _check_receiver(
        self, required: Requirement, asset: Asset, paused: PausedTask
    ) -> None:
        """Raise PaymentRefused unless the receiver is the agent's known one, or is approved now."""
        origin, to = origin_of(paused.url), required.pay_to.lower()
        place = f"{origin} {asset.network} {asset.address.lower()}"
        given = self._only or self._given.get(origin, "")
        known = given or (await self._ledger.read()).receivers.get(place, "")
        if known == to:
            return
        if not known and paused.verified and to in _named(paused):
            await self._ledger.change(partial(_pin, place, to))
            return
        shown = asset.shown(required.amount)
        proposed = ProposedPayment(
            paused.url, paused.card.name, shown, asset.network, required.pay_to, known
        )
        approved = False
        if self._on_payment is not None and not given:
            asked = self._on_payment(proposed)
            approved = await asked if inspect.isawaitable(asked) else asked
        if approved is not True:
            why = f"the receiver was {known} before" if known else "the receiver is not known"
            why = f"only {given} may be paid" if given else f"{why}: {ADVICE}"
            raise PaymentRefused(f"the agent asks for {shown} to {required.pay_to}, and {why}")
        await self._ledger.change(partial(_pin, place, to))

    # -- paying

    async def _pay(
        self, offered: str, required: Requirement, asset: Asset, version: int, paused: PausedTask
    ) -> Payload:
        """The signed payment for an offer; the same one if there is one already."""
        count = partial(self._count, offered, required, asset, paused)
        try:
            signed = await self._ledger.change(count)
        except PaymentRefused:
            if not await self.reclaim():
                raise
            signed = await self._ledger.change(count)
        if not signed.signature:
            domain = requirement_with_domain(required, asset)
            signature = await sign(self._signer, domain, signed.authorization)
            if not isinstance(signature, str) or not SIGNATURE.fullmatch(signature):
                raise PaymentRefused("the wallet's signer returned no signature in hexadecimal")
            signed.signature = signature
            # stored before it is sent; another process may have been faster
            signed = await self._ledger.change(partial(_keep, signed))
        return Payload(
            version=version,
            network=required.network,
            authorization=signed.authorization,
            signature=signed.signature,
            accepted=required if version == 2 else None,
        )

    def _count(
        self,
        offered: str,
        required: Requirement,
        asset: Asset,
        paused: PausedTask,
        found: Ledger,
    ) -> Signed:
        """Count a payment before it is signed. Raises PaymentRefused."""
        now = time.time()
        for one in found.payments:
            if one.offer == offered and one.authorization.valid_before > now:
                return one
        found.prune(now)
        self._check_limits(found, required, asset, paused, now)
        signed = Signed(
            offer=offered,
            origin=origin_of(paused.url),
            task=paused.task.id,
            on_behalf_of=paused.on_behalf_of,
            asset=asset.address,
            symbol=asset.symbol,
            amount=required.amount,
            decimals=asset.decimals,
            network=required.network,
            to=required.pay_to,
            at=now,
            authorization=Authorization(
                payer=self.address,
                to=required.pay_to,
                value=required.amount,
                valid_after=0,
                valid_before=int(now) + min(required.timeout, LONGEST),
                nonce=new_nonce(),
            ),
        )
        found.payments.append(signed)
        found.limits = (shown_amount(self._per_call), shown_amount(self._per_day))
        return signed

    def _check_limits(
        self, found: Ledger, required: Requirement, asset: Asset, paused: PausedTask, now: float
    ) -> None:
        origin, amount = origin_of(paused.url), Decimal(required.amount).scaleb(-asset.decimals)
        if self._per_task and not paused.on_behalf_of:
            raise PaymentRefused(
                f"the agent asks for {asset.shown(required.amount)}; this part of the wallet pays "
                "only on behalf of a task, through a client of its turn"
            )
        symbol = asset.symbol
        own = found.on_behalf_of(paused.on_behalf_of, symbol) if self._per_task else Decimal(0)
        for name, (most, counted), before in (
            ("limit per_call", self._per_call, found.of_task(origin, paused.task.id, symbol)),
            ("limit per_day", self._per_day, found.since(now - DAY, symbol)),
            *(("budget of the task", most, own) for most in self._per_task),
        ):
            if counted != symbol or before + amount > most:
                raise PaymentRefused(
                    f"the agent asks for {asset.shown(required.amount)}; "
                    f"{shown_amount((before, symbol))} are counted already, and the {name} is "
                    f"{shown_amount((most, counted))}"
                )

    # -- what was paid

    async def history(self) -> Sequence[SignedPayment]:
        """Return the latest payments, the newest first. Raises LedgerUnavailable."""
        found = await self._ledger.read()
        return [signed_payment(one) for one in reversed(found.payments)]

    async def limits(self) -> WalletLimits:
        """Return the limits, and what counts of them now. Raises LedgerUnavailable."""
        found = await self._ledger.read()
        since = time.time() - DAY
        symbols = dict.fromkeys(one.symbol for one in found.payments if one.at > since)
        counted = {symbol: found.since(since, symbol) for symbol in symbols}
        return WalletLimits(
            *found.limits, tuple(shown_amount((units, symbol)) for symbol, units in counted.items())
        )

    async def reclaim(self) -> int:
        """Ask the chains about payments that count and have expired, and return how many were not
        carried out: they do not count any more. It is done, too, before a payment is refused."""
        found, now = await self._ledger.read(), time.time()
        asked = [
            one
            for one in reversed(found.payments)
            if one.network in self._chains
            and one.authorization.valid_before < now
            and not (one.unused or one.transaction)
        ]
        known: dict[str, Receipt] = {}
        for one in asked[:ASKED_AT_ONCE]:
            required = Requirement(
                network=one.network, asset=one.asset, amount=one.amount, pay_to=one.to
            )
            try:
                receipt = await self._chains[one.network]._settled(required, one.authorization)
            except NoAnswer as error:
                logger.warning("whether a payment was carried out is not known: %s", error)
                break
            if receipt is not None:
                known[one.authorization.nonce] = receipt
        return await self._ledger.change(partial(_note, known)) if known else 0


def _note(known: Mapping[str, Receipt], found: Ledger) -> int:
    """Write down what the chain has shown, and return how many payments were not carried out."""
    unused = 0
    for one in found.payments:
        receipt = known.get(one.authorization.nonce)
        if receipt is None or one.unused or one.transaction:
            continue
        if receipt.success:
            one.transaction = receipt.transaction
        else:
            one.unused = True
            unused += 1
    return unused


def _keep(signed: Signed, found: Ledger) -> Signed:
    """Store a signature; the first one stays."""
    for one in found.payments:
        if one.authorization.nonce == signed.authorization.nonce:
            one.signature = one.signature or signed.signature
            return one
    raise PaymentRefused("the wallet's ledger has lost the payment: nothing is sent")


def _pin(place: str, to: str, found: Ledger) -> None:
    found.receivers[place] = to


def requirement_with_domain(required: Requirement, asset: Asset) -> Requirement:
    """A way to pay with the EIP-712 domain of the asset that the wallet knows."""
    return replace(required, name=asset.name, domain_version=asset.version)


def _check_origin(required: Requirement, url: str, asset: Asset) -> None:
    """Raise PaymentRefused if an offer names a resource at another origin."""
    resource = required.resource
    try:
        elsewhere = bool(urlsplit(resource).netloc) and origin_of(resource) != origin_of(url)
    except ValueError:
        elsewhere = True
    if elsewhere:
        raise PaymentRefused(
            f"the agent asks for {asset.shown(required.amount)} for something at another origin: "
            f"{resource[:200]}"
        )


def _named(paused: PausedTask) -> set[str]:
    """The receivers on the card."""
    return {price.to.lower() for price in prices(paused.card).values() if price.to}
