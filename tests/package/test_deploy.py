"""What is in deploy/ fits what it deploys: commands, settings, ports, times and figures."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate as validate
import msgspec
import promql_parser as promql
import pytest
import yaml

from dragoman import App, settings
from dragoman.cli import _parser
from dragoman.client import Client
from dragoman.metrics import Metrics
from dragoman.settings import PREFIX, Settings
from dragoman.types import TaskState
from tests.telemetry.offices import office, port
from tests.telemetry.scraping import Scrape, scrape

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = "1.31"


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


# ---- commands ------------------------------------------------------------------------------


def commands() -> dict[str, list[str]]:
    """Every command line, by where it is."""
    found = {f"compose {name}": service["command"] for name, service in images()}
    found |= {name: pod["containers"][0]["args"] for name, pod in pods()}
    for path in UNITS:
        (line,) = (value for name, value in units(path) if name == "ExecStart")
        program, command, *words = shlex.split(line.replace("$AGENTS", "booking:agent"))
        assert (program, command) == ("/usr/bin/env", "dragoman")
        found[path.name] = words
    (found["Dockerfile"],) = (json.loads(value) for name, value in dockerfile() if name == "CMD")
    return found


@pytest.mark.parametrize("where", commands())
def test_each_command_is_understood(where: str) -> None:
    arguments = _parser().parse_args(commands()[where])
    assert callable(arguments.run)


def test_there_are_commands_of_each_kind() -> None:
    assert {words[0] for words in commands().values()} == {"serve", "worker", "db"}


# ---- settings ------------------------------------------------------------------------------


def variables() -> Iterator[tuple[str, str, str]]:
    """Every variable that is set, where, and to what."""
    for name, service in images():
        for key, value in service["environment"].items():
            yield f"compose {name}", key, str(value)
    for found in documents():
        if found["kind"] in ("ConfigMap", "Secret"):
            for key, value in (found.get("data") or found["stringData"]).items():
                yield found["kind"], key, value
    for name, value in dockerfile():
        if name == "ENV":
            for pair in shlex.split(value):
                yield "Dockerfile", pair.partition("=")[0], pair.partition("=")[2]


def test_each_setting_is_one() -> None:
    ours = [(where, key, value) for where, key, value in variables() if key.startswith(PREFIX)]
    assert len(ours) > 10
    for where, key, value in ours:
        name = key.removeprefix(PREFIX).lower()
        assert name in Settings.__struct_fields__, f"{where}: {key}"
        found = settings.load(environ={key: value}, file="/dev/null")
        default = {f.name: f.default for f in msgspec.structs.fields(Settings)}[name]
        assert getattr(found, name) != default, f"{where}: {key} says what is so anyway"


def test_those_who_stop_a_process_wait_until_it_has_drained() -> None:
    drain = {key: float(value) for _, key, value in variables() if key == "DRAGOMAN_DRAIN"}
    (seconds,) = drain.values()
    # what `dragoman serve` may take beyond it
    needed = seconds + 5 + Settings().cancel_grace
    for name, service in images():
        assert int(service["stop_grace_period"].removesuffix("s")) >= needed, name
    for name, pod in pods():
        if name == "dragoman-migrate":
            continue
        stop = pod["containers"][0].get("lifecycle", {}).get("preStop")
        before = float(stop["exec"]["command"][1]) if stop else 0.0
        assert pod["terminationGracePeriodSeconds"] >= needed + before, name
    for path in UNITS:
        assert float(dict(units(path))["TimeoutStopSec"]) >= Settings().drain + 10


# ---- Kubernetes ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_manifests_are_what_kubernetes_takes(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        validate.validate(found, KUBERNETES, strict=True)


def test_the_probes_ask_for_what_is_there() -> None:
    values = {key: value for where, key, value in variables() if where == "ConfigMap"}
    numbers = {"http": Settings().port, "metrics": int(values["DRAGOMAN_METRICS_PORT"])}
    for name, pod in pods():
        (container,) = pod["containers"]
        ports = {found["name"]: found["containerPort"] for found in container.get("ports", ())}
        assert ports.items() <= numbers.items(), name
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name == "dragoman-migrate":
                assert probe not in container
                continue
            asked = container[probe]["httpGet"]
            assert asked["port"] in ports
            assert asked["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")
    assert values["DRAGOMAN_METRICS_HOST"] == values["DRAGOMAN_HOST"] == "0.0.0.0"


def test_what_belongs_together_in_kubernetes() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents()}
    for _, pod in pods():
        (container,) = pod["containers"]
        for source in container["envFrom"]:
            (kind, named), *_ = source.items()
            kinds = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
            assert (kinds[kind], named["name"]) in found
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["runAsNonRoot"]
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in documents()
        if each["kind"] == "Deployment"
    }
    for (kind, _), each in found.items():
        if kind == "Service":
            assert each["spec"]["selector"].items() <= labels["dragoman-serve"].items()
        elif kind == "PodDisruptionBudget":
            matched = each["spec"]["selector"]["matchLabels"]
            assert matched.items() <= labels["dragoman-serve"].items()
        elif kind == "HorizontalPodAutoscaler":
            target = each["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in found
            # a number there would be put back with each `kubectl apply`
            assert "replicas" not in found[target["kind"], target["name"]]["spec"]


# ---- compose, Docker, systemd --------------------------------------------------------------


def test_what_belongs_together_in_compose() -> None:
    found = compose()
    for name, service in found["services"].items():
        for other, condition in service.get("depends_on", {}).items():
            assert other in found["services"], name
            needs = condition["condition"]
            if needs == "service_healthy" and not found["services"][other].get("healthcheck"):
                assert other in dict(images()), "its image has one"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith("."):
                assert source in found["volumes"]
            elif source != "./agents":  # those are the user's
                assert (DEPLOY / source).exists()
        build = service.get("build")
        if build:
            assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert found["services"]["serve"]["deploy"]["replicas"] == 2
    assert "ports" not in found["services"]["serve"], "two cannot have the same one"
    upstream = re.search(r"http://(\w+):(\d+)", (DEPLOY / "nginx/default.conf").read_text())
    assert upstream is not None
    assert upstream[1] in found["services"]
    assert int(upstream[2]) == Settings().port


def test_the_image() -> None:
    found = dockerfile()
    names = [name for name, _ in found]
    last = len(names) - 1 - names[::-1].index("FROM")
    final = dict(found[last:])
    assert final["USER"].split(":")[0].isdigit(), "a number, so that Kubernetes can tell"
    assert final["USER"] != "0"
    assert json.loads(final["ENTRYPOINT"]) == ["dragoman"]
    env = {key: value for where, key, value in variables() if where == "Dockerfile"}
    assert env["DRAGOMAN_METRICS_PORT"] in final["HEALTHCHECK"]
    exposed = [str(Settings().port), env["DRAGOMAN_METRICS_PORT"]]
    assert final["EXPOSE"].split() == exposed
    for name, value in found:
        if name == "FROM":
            assert re.match(r"python:3\.\d+-slim-\w+", value), "a version, and not the latest"
        if name == "COPY" and "--from" not in value:
            for source in value.split()[:-1]:
                assert (DEPLOY.parent / source).exists()
    extras = set(re.findall(r"\[([\w,]+)\]", (DEPLOY / "Dockerfile").read_text()))
    assert len(extras) == 1, "what is built is what is installed"
    pyproject = (DEPLOY.parent / "pyproject.toml").read_text()
    for extra in extras.pop().split(","):
        assert re.search(rf"^{extra} = \[", pyproject, re.MULTILINE), extra


HARDENED = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "DynamicUser": "yes"}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units(path: Path, tmp_path: Path) -> None:
    found = dict(units(path))
    assert found.items() >= HARDENED.items()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / path.name.replace("@", "@booking")
    shutil.copy(path, unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if path.name.split("@")[0] in line]
    assert not said


# ---- figures -------------------------------------------------------------------------------

_METRIC = re.compile(r"\b((?:dragoman|process)_[a-z_]+)(?:\{([^}]*)\})?")
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of buckets."""


def queries() -> dict[str, str]:
    """Every query, by where it is."""
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found[variable["name"]] = variable["query"]
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for each in documents():
        if each["kind"] == "HorizontalPodAutoscaler":
            for metric in each["spec"]["metrics"]:
                found["autoscaler"] = metric["external"]["metric"]["name"]
    return found


def filled(query: str) -> str:
    """The query as Prometheus is asked, with a value for each variable of Grafana."""
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    values = {variable["name"]: "office" for variable in dashboard["templating"]["list"]}
    values["__rate_interval"] = "5m"
    query = re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), query)
    # a function of Grafana's own, around what it asks for
    return re.sub(r"^label_values\((.+), \w+\)$", r"\1", query)


@pytest.mark.parametrize("where", queries())
def test_each_query_is_understood(where: str) -> None:
    query = filled(queries()[where])
    assert "$" not in query, f"{where}: nobody fills in what is left in {query}"
    try:
        promql.parse(query)
    except ValueError as error:
        pytest.fail(f"{where}: {error}: {query}")


def test_no_query_hides_another() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    told = sum(len(panel["targets"]) for panel in dashboard["panels"])
    told += sum(variable["type"] == "query" for variable in dashboard["templating"]["list"])
    told += sum(len(group["rules"]) for group in groups)
    assert len(queries().keys() - {"autoscaler"}) == told, "two have the same name"


@pytest.fixture
async def scraped() -> Scrape:
    """What a real server tells after some work."""
    async with App(office(), metrics_port=0) as app, Client.connect(app=app) as client:
        for text in ("x", "fail", "ask"):
            await client.send(text)
        return await scrape(port(app))


async def test_every_figure_that_is_asked_for_is_told(scraped: Scrape) -> None:
    declared = {figure.name: set(figure.labels) for figure in Metrics().figures}
    names = scraped.names()
    asked = set()
    for where, query in queries().items():
        found = _METRIC.findall(query)
        assert found, where
        for name, selector in found:
            assert name in names, f"{where}: {name}"
            asked.add(name)
            base = name if name in declared else name.rsplit("_", 1)[0]
            labels = declared[base] | ADDED
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            used |= {x for by in re.findall(r"by \(([^)]*)\)", query) for x in by.split(", ")}
            assert used <= labels, f"{where}: {used - labels}"
            seen = scraped.labels(name)
            assert seen <= labels
    unasked = {name for name, kind in scraped.kinds.items() if not any(name in a for a in asked)}
    assert unasked <= {"dragoman_build_info", "process_open_fds", "process_start_time_seconds"}


def test_the_values_of_labels_that_are_asked_for_exist() -> None:
    from dragoman import errors

    reasons = {
        each.reason for each in vars(errors).values() if hasattr(each, "reason")
    } | {"ok"}  # fmt: skip
    endings = {state.name.lower() for state in TaskState} | {"lost", "replied", "handed_back"}
    known = {
        "reason": reasons,
        "outcome": reasons | endings,
        "state": endings | {"parked", "waiting"},
        "operation": {"SendMessage"},
    }
    checked = 0
    for where, query in queries().items():
        for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"$]+)"', query):
            if label in known:
                checked += 1
                assert set(value.split("|")) <= known[label], where
    assert checked > 5
