"""The files in deploy/, read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def documents() -> list[dict[str, Any]]:
    """All manifests."""
    return [found for path in MANIFESTS for found in yaml.safe_load_all(path.read_text())]


def compose() -> dict[str, Any]:
    """The services, with what they share filled in."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the image."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def units(path: Path) -> list[tuple[str, str]]:
    """The directives of a unit; their names repeat."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] not in "#["]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of the manifests, by what they are of."""
    for found in documents():
        if found["kind"] in ("Deployment", "Job"):
            yield found["metadata"]["name"], found["spec"]["template"]["spec"]


def images() -> Iterator[tuple[str, dict[str, Any]]]:
    """The services of the compose file that are ours."""
    for name, service in compose()["services"].items():
        if service["image"].startswith("dragoman"):
            yield name, service
