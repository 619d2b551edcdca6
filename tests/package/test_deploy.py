"""What is in deploy/ fits what it deploys: commands, settings, ports and times."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate as validate
import msgspec
import pytest
import yaml

from dragoman import App, __version__
from dragoman.cli import _parser
from dragoman.server import load_settings
from dragoman.server.load_settings import PREFIX
from dragoman.server.settings import Settings
from tests.package.deploy_files import (
    DEPLOY,
    MANIFESTS,
    UNITS,
    compose,
    dockerfile,
    documents,
    images,
    pods,
    units,
)
from tests.telemetry.monitored_agent import office, port

KUBERNETES = "1.31"

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
    for name, pod in pods():
        for given in pod["containers"][0].get("env", ()):
            yield name, given["name"], given["value"]
    for name, value in dockerfile():
        if name == "ENV":
            for pair in shlex.split(value):
                yield "Dockerfile", pair.partition("=")[0], pair.partition("=")[2]
    for path in UNITS:
        for name, value in units(path):
            if name == "Environment":
                yield path.name, value.partition("=")[0], value.partition("=")[2]
    for path in (DEPLOY / "systemd").glob("*.env"):
        for name, value in units(path):
            yield path.name, name, value


def test_each_setting_is_one() -> None:
    ours = [(where, key, value) for where, key, value in variables() if key.startswith(PREFIX)]
    assert len(ours) > 10
    for where, key, value in ours:
        name = key.removeprefix(PREFIX).lower()
        assert name in Settings.__struct_fields__, f"{where}: {key}"
        found = load_settings.load(environ={key: value}, file="/dev/null")
        default = {f.name: f.default for f in msgspec.structs.fields(Settings)}[name]
        assert getattr(found, name) != default, f"{where}: {key} says what is so anyway"


def test_those_who_stop_a_process_wait_until_it_has_drained() -> None:
    drain = {key: float(value) for _, key, value in variables() if key == "DRAGOMAN_DRAIN_TIMEOUT"}
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
        assert float(dict(units(path))["TimeoutStopSec"]) >= Settings().drain_timeout + 10


# ---- Kubernetes ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_manifests_are_what_kubernetes_takes(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        validate.validate(found, KUBERNETES, strict=True)


def test_the_probes_ask_for_what_is_there() -> None:
    values = {key: value for where, key, value in variables() if where == "ConfigMap"}
    numbers = {
        "http": Settings().port,
        "metrics": Settings(metrics=values["DRAGOMAN_METRICS"]).metrics_address[1],
    }
    (grpc,) = {int(v) for where, key, v in variables() if key == "DRAGOMAN_GRPC_PORT"}
    numbers["grpc"] = grpc
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
    assert (
        values["DRAGOMAN_METRICS"].startswith(f"{values['DRAGOMAN_HOST']}:")
        and values["DRAGOMAN_HOST"] == "0.0.0.0"
    )
    (policy,) = (each for each in documents() if each["kind"] == "NetworkPolicy")
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(numbers.values())
    (service,) = (each for each in documents() if each["kind"] == "Service")
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http", "grpc"}


def test_a_pod_gets_no_variables_of_a_service() -> None:
    """The Service named dragoman would set DRAGOMAN_PORT to an address."""
    for name, pod in pods():
        assert pod["enableServiceLinks"] is False, name


def test_a_pod_can_write_temporary_files() -> None:
    for name, pod in pods():
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        (mounted,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/tmp")
        (volume,) = (v for v in pod["volumes"] if v["name"] == mounted["name"])
        assert "emptyDir" in volume, name
    for name, service in images():
        assert service["read_only"], name
        assert service["tmpfs"] == ["/tmp"], name


def test_the_image_is_the_one_that_is_built() -> None:
    """Not the latest: Kubernetes would fetch it each time, from a registry that has none."""
    built = {
        found
        for path in (*DEPLOY.rglob("*"), *DEPLOY.parent.glob("docs/*.md"))
        if path.is_file() and not path.name.endswith(".json")
        for found in re.findall(r"\bdragoman:(\d[\w.]*|latest)\b", path.read_text())
    }
    assert built == {__version__}
    for name, pod in pods():
        (container,) = pod["containers"]
        assert container["imagePullPolicy"] == "IfNotPresent", name


def test_each_file_says_the_command_that_uses_it() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_dir() or path.suffix == ".json" or path.name.endswith(".dockerignore"):
            continue
        head = path.read_text().partition("\n\n")[0]
        said = "\n".join(line for line in head.splitlines() if line.startswith("#"))
        uses = (str(path.relative_to(DEPLOY.parent)), f"/etc/dragoman/{path.name}")
        assert any(use in said for use in uses), path
        if path.suffix != ".env":  # those go with a unit
            tools = "docker|kubectl|helm|nginx|systemctl|promtool"
            assert re.search(rf"\b({tools}) [-\w]", said), path


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
    assert {name for kind, name in found if kind == "PodDisruptionBudget"} == set(labels)
    for (kind, _), each in found.items():
        if kind == "Service":
            assert each["spec"]["selector"].items() <= labels["dragoman-serve"].items()
        elif kind == "PodDisruptionBudget":
            matched = each["spec"]["selector"]["matchLabels"]
            assert matched.items() <= labels[each["metadata"]["name"]].items()
            # one worker must not keep its node from being drained
            needed = 2 if "minAvailable" in each["spec"] else 0
            assert (
                found["Deployment", each["metadata"]["name"]]["spec"].get("replicas", 1) >= needed
            )
        elif kind == "HorizontalPodAutoscaler":
            target = each["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in found
            # a number there would be put back with each `kubectl apply`
            assert "replicas" not in found[target["kind"], target["name"]]["spec"]


# ---- compose, Docker --------------------------------------------------------------


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
    (grpc,) = {value for _, key, value in variables() if key == "DRAGOMAN_GRPC_PORT"}
    exposed = [str(Settings().port), env["DRAGOMAN_METRICS"].rpartition(":")[2], grpc]
    assert final["EXPOSE"].split() == exposed
    arguments = dict(value.split("=", 1) for name, value in found if name == "ARG" and "=" in value)
    base = r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}"
    assert re.fullmatch(base, arguments["BASE"]), "a version and a digest, and not the latest"
    stages = [value.split()[-1] for name, value in found if name == "FROM"]
    for name, value in found:
        if name == "FROM":
            assert value.split()[0] in ("${BASE}", *stages)
        if name == "COPY" and "--from" not in value:
            for source in value.split()[:-1]:
                assert (DEPLOY.parent / source).exists()
    pyproject = (DEPLOY.parent / "pyproject.toml").read_text()
    for extra in arguments["EXTRAS"].split(","):
        assert re.search(rf"^{extra} = \[", pyproject, re.MULTILINE), extra


def test_dependencies_have_a_layer_of_their_own() -> None:
    """A change in the sources must not fetch and install all of them again."""
    stages: list[list[str]] = []
    for name, value in dockerfile():
        if name == "FROM":
            stages.append([value])
        elif stages:
            stages[-1].append(f"{name} {value}")
    dependencies, _, final = stages
    copied = {s for line in dependencies if line.startswith("COPY") for s in line.split()[1:-1]}
    assert copied == {"pyproject.toml", "LICENSE", "src/dragoman/_version.py"}
    installs = [line for line in final if "pip install" in line]
    assert ["from=dependencies" in line for line in installs] == [True, False]


async def test_the_health_check_asks_the_port_that_is_set() -> None:
    (check,) = (value for name, value in dockerfile() if name == "HEALTHCHECK")
    _, *words = json.loads(check[check.index("[") :])
    async with App(office(), metrics=0) as app:
        for number, status in ((port(app), 0), (1, 1)):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                env={"DRAGOMAN_METRICS": f"0.0.0.0:{number}"},
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert await process.wait() == status
