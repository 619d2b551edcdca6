"""Pages of figures, read."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

_LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')


@dataclass
class Scrape:
    """One page."""

    kinds: dict[str, str] = field(default_factory=dict)
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    def get(self, name: str, **labels: str) -> float:
        """The sum of all samples with these labels."""
        wanted = set(labels.items())
        return sum(v for (n, found), v in self.samples.items() if n == name and wanted <= found)

    def having(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """The samples with these labels, by all of their labels."""
        wanted = set(labels.items())
        return {found: v for (n, found), v in self.samples.items() if n == name and wanted <= found}

    def names(self) -> set[str]:
        """What can be asked for, with the suffixes of histograms."""
        return {
            name + suffix
            for name, kind in self.kinds.items()
            for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
        }

    def labels(self, name: str) -> set[str]:
        """The names of labels that a figure has here."""
        return {key for (n, found) in self.samples if n == name for key, _ in found}


def parse(page: str) -> Scrape:
    """A page in the text format; AssertionError if it is none."""
    found = Scrape()
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in found.kinds, f"{name} is there twice"
            found.kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _LINE.fullmatch(line)
            assert match, line
            labels = _LABEL.findall(match[2] or "")
            assert ",".join(f'{k}="{v}"' for k, v in labels) == (match[2] or ""), line
            key = match[1], frozenset(labels)
            assert key not in found.samples, line
            found.samples[key] = float(match[3])
    assert page.endswith("\n")
    return found


async def get(port: int, path: str = "/metrics", *, method: str = "GET") -> tuple[int, str, str]:
    """Status, head and body of a page, by plain bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ")[1]), head, body


async def scrape(port: int) -> Scrape:
    """What the port tells."""
    status, head, body = await get(port)
    assert status == 200
    assert "text/plain; version=0.0.4" in head
    return parse(body)
