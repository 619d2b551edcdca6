"""The server is sent everything that it should not be: a little with every run of the tests, for
as long as one likes with `make fuzz SECONDS=600`, and a while with `make soak`. What has ever
failed is kept in `corpus.jsonl`, and comes first."""

from __future__ import annotations

import os
import random
from pathlib import Path

from dragoman.dialects.protobuf.package_codec import PACKAGES
from dragoman.model.operations import OPERATIONS
from tests.harness.raw_http import connect, request
from tests.harness.scale import SCALE, SOAK, seeded
from tests.harness.server import serving
from tests.security.fuzz.cases import CARD, GRPC, HTTP, Case, changed, seeds
from tests.security.fuzz.run import fuzz, kept, replayed
from tests.security.fuzz.targets import fuzz_targets

SECONDS = float(os.environ.get("FUZZ_SECONDS") or (600 * SCALE if SOAK else 4))


def test_every_operation_is_attacked_in_every_version() -> None:
    found = seeds()
    methods = {case.target for case in found if case.kind == GRPC}
    assert methods == {f"/{s.service}/{name}" for s in PACKAGES for name in s.methods}
    said = b"\n".join(case.body for case in found if case.kind == HTTP)
    paths = "\n".join(f"{case.verb} {case.target}" for case in found)
    for operation in OPERATIONS:
        assert f'"{operation.name}"'.encode() in said
        if operation.legacy.method:
            assert f'"{operation.legacy.method}"'.encode() in said
        for path in (operation.path, operation.legacy.path):
            first = path.partition("/{")[0]
            assert f" {first}" in paths
            assert path.rpartition("}")[2] in paths
    for method in (b"tasks/send", b"tasks/sendSubscribe", b"tasks/pushNotification/get"):
        assert b'"%b"' % method in said


async def test_what_has_failed_once(tmp_path: Path) -> None:
    async with fuzz_targets(tmp_path) as targets:
        await replayed(targets, kept())


async def test_what_is_valid_is_no_fault(tmp_path: Path) -> None:
    async with fuzz_targets(tmp_path) as targets:
        await replayed(targets, seeds())


async def test_chance(tmp_path: Path) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    async with fuzz_targets(tmp_path) as targets:
        assert await fuzz(targets, SECONDS, seed) > 100


async def test_over_sockets(tmp_path: Path) -> None:
    """The same through a real server, which may refuse a request before the application sees it."""
    dice = seeded("sockets")
    pool = [case for case in seeds() if case.kind == HTTP]
    async with fuzz_targets(tmp_path) as targets:
        target = targets.targets[0]
        async with serving(target.app, lifespan="off") as url:
            for _ in range(int(5000 * SCALE) if SOAK else 150):
                case = changed(dice, dice.choice(pool)).about(target.tasks)
                head = [(k, v) for k, v in case.headers if k not in (b"host", b"content-length")]
                async with connect(url) as connection:
                    await connection.send(request(case.verb, case.target, case.body, head))
                    answer = await connection.answer(whole=False)
                assert answer is None or answer.status < 500, case.line()
            await target.alive()
            assert targets.listener.heard == []


def test_a_document_that_is_nested_deeply_can_be_changed() -> None:
    dice = random.Random(1)
    for depth in (2, 150, 900, 4000):
        for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
            case = Case(CARD, opened * depth + b"1" + closed * depth)
            assert any(changed(dice, case).body != case.body for _ in range(20))
    case = Case(CARD, b'{"a":' * 199 + b"1" + b"}" * 199)
    for seed in range(200):  # some copy the whole into itself, again and again
        changed(random.Random(seed), case)


def test_a_case_is_kept_as_it_was() -> None:
    case = Case(HTTP, b"\x00\xff", "GET", "/x?y", ((b"a", b"\xff"),), "why")
    assert Case.read(case.line()) == case
