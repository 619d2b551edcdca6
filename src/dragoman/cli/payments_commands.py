"""`dragoman payments`: the books of the merchants whose agents use a store."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.cli import UsageError, db_parser, examples
from dragoman.cli.terminal_format import json_text, moment, table, when

if TYPE_CHECKING:
    from dragoman.payments.books import BookedPayment, Books, PaymentRecord
    from dragoman.stores.admin import Make

FIELDS = (
    *("at", "state", "agent", "skill", "task", "payer", "to", "network", "asset", "amount"),
    *("price", "nonce", "transaction", "refund_amount", "refund_transaction", "refund_at"),
)
"""The columns of CSV, and the fields of JSON."""
SHOWN = ("at", "state", "task", "skill", "price", "payer", "transaction")
"""The columns of a table."""


def add(commands: Any) -> None:
    """Add `payments` to the commands."""
    payments = commands.add_parser(
        "payments",
        help="show what agents were paid, and record refunds",
        description="Show the payments and offers of agents that are paid, and record refunds.",
        **examples("payments list --since 30d --csv", "payments owed", "payments unsettled"),
    )
    inner = payments.add_subparsers(required=True, metavar="command")

    one = _command(
        inner, "list", "list payments, or offers", "--since 30d --csv > november.csv", "--offers"
    )
    one.add_argument(
        "--offers", action="store_true", help="list what tasks have asked for, paid or not"
    )
    one.add_argument("--task", default="", help="list only those of this task (default: all)")
    _shown(one)

    one = _command(
        inner,
        "owed",
        "list payments whose task did not complete, and that were not refunded",
        "",
        "--csv",
    )
    _shown(one)

    one = _command(
        inner,
        "unsettled",
        "list payments of which it is not known whether they were carried out",
        "",
        "--json",
    )
    _shown(one)

    one = _command(
        inner,
        "refund",
        "record that a payment was paid back; it sends nothing",
        "0198… --transaction 0x9fc7…",
        "0198… --transaction 0x9fc7… --amount 50000",
    )
    one.add_argument("task", metavar="TASK", help="the id of the task that was paid")
    one.add_argument(
        "--transaction",
        required=True,
        metavar="TX",
        help="the transaction of the refund (required)",
    )
    one.add_argument(
        "--amount",
        type=int,
        metavar="UNITS",
        help="the amount in the smallest unit of the asset (default: the whole payment)",
    )
    _payment(one)

    one = _command(
        inner,
        "resolve",
        "record what came of an unsettled payment",
        "0198… --transaction 0x9fc7…",
        "0198… --unused",
    )
    one.add_argument("task", metavar="TASK", help="the id of the task that was paid")
    came = one.add_mutually_exclusive_group(required=True)
    came.add_argument(
        "--transaction",
        default="",
        metavar="TX",
        help="this transaction has carried it out, so it is owed (default: none)",
    )
    came.add_argument(
        "--unused", action="store_true", help="it has expired, and was never carried out"
    )
    _payment(one)


def _payment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nonce",
        default="",
        help="the nonce of the payment, if the task has several (default: the only one)",
    )


def _command(commands: Any, name: str, help: str, *lines: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        **examples(*(f"payments {name} {each}".rstrip() for each in lines)),
    )
    db_parser.add_store(one)
    one.set_defaults(run=partial(db_parser.run, work=COMMANDS[name], decrypts=True))
    return one


def _shown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=moment,
        help="list only what was recorded after this time: 30d (ago), 2026-01-31 or an RFC 3339 "
        "time (default: all)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON")


# ---- the commands


def _list(arguments: argparse.Namespace, make: Make) -> int:
    with make() as admin:
        books = _books(admin)
        if arguments.offers:
            return _print(map(_row, books.records("offered", arguments.task)), arguments)
        return _print(map(_booked, books.payments(arguments.task)), arguments)


def _owed(arguments: argparse.Namespace, make: Make) -> int:
    with make() as admin:
        return _print(map(_row, _books(admin).owed()), arguments)


def _unsettled(arguments: argparse.Namespace, make: Make) -> int:
    with make() as admin:
        return _print(map(_row, _books(admin).unsettled()), arguments)


def _refund(arguments: argparse.Namespace, make: Make) -> int:
    from dragoman.payments.books import Refund

    given = Refund(arguments.transaction, arguments.amount)
    with make(write=True) as admin:
        try:
            found = _books(admin).refund(arguments.task, given, nonce=arguments.nonce)
        except (LookupError, ValueError) as error:
            raise UsageError(f"refund: {error.args[0]}") from None
    print(f"recorded: {_price(found)} refunded to {found.payer}")
    return 0


def _resolve(arguments: argparse.Namespace, make: Make) -> int:
    with make(write=True) as admin:
        try:
            found = _books(admin).resolve(
                arguments.task, arguments.transaction, nonce=arguments.nonce
            )
        except (LookupError, ValueError) as error:
            raise UsageError(f"resolve: {error.args[0]}") from None
    print(f"recorded: {_price(found)} of {found.payer} is {found.kind}")
    return 0


COMMANDS = {
    "list": _list,
    "owed": _owed,
    "unsettled": _unsettled,
    "refund": _refund,
    "resolve": _resolve,
}


def _books(admin: Any) -> Books:
    from dragoman.payments.books import Books

    return Books(admin)


# ---- printing


def _price(record: PaymentRecord) -> str:
    from dragoman.payments.networks import amount_in_words

    return amount_in_words(record.amount, record.asset, record.network)


def _row(record: PaymentRecord, state: str = "") -> dict[str, Any]:
    return {
        "at": when(record.at),
        "state": state or record.kind,
        "agent": record.agent,
        "skill": record.skill,
        "task": record.task,
        "payer": record.payer,
        "to": record.to,
        "network": record.network,
        "asset": record.asset,
        "amount": record.amount,
        "price": _price(record),
        "nonce": record.nonce,
        "transaction": record.transaction,
    }


def _booked(found: BookedPayment) -> dict[str, Any]:
    refund = found.refund
    row = _row(found.record, found.state)
    if refund is not None:
        row["refund_amount"], row["refund_transaction"] = refund.amount, refund.transaction
        row["refund_at"] = when(refund.at)
    return row


def _print(found: Iterable[Mapping[str, Any]], arguments: argparse.Namespace) -> int:
    since = arguments.since or ""
    rows = (row for row in found if row["at"] >= since)
    if arguments.csv:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(FIELDS)
        lines.writerows([_cell(row.get(name, "")) for name in FIELDS] for row in rows)
    elif arguments.json:
        print(json_text(json.dumps(list(rows), indent=2)))
    elif shown := [_short(row) for row in rows]:
        print(table(SHOWN, shown))
    else:
        print("none", file=sys.stderr)
    return 0


def _short(row: Mapping[str, Any]) -> list[str]:
    texts = [str(row[name]) for name in SHOWN]
    return [f"{text[:18]}…" if text.startswith("0x") else text for text in texts]


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes for no formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
