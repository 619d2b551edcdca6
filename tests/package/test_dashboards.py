"""Dashboard, alerts and autoscaler use metrics that exist, in the right way."""

from __future__ import annotations

import json
import re

import promql_parser as promql
import pytest
import yaml

from dragoman import App
from dragoman.client import Client
from dragoman.model.types import TaskState
from dragoman.telemetry.metrics import Metrics
from tests.package.deploy_files import DEPLOY, documents
from tests.telemetry.monitored_agent import office, port
from tests.telemetry.scrape import Scrape, scrape

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
    found["autoscaler"] = autoscaler()
    return found


def autoscaler() -> str:
    """What prometheus-adapter asks for, for the metric that the autoscaler names."""
    (scaler,) = (each for each in documents() if each["kind"] == "HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    adapter = yaml.safe_load((DEPLOY / "prometheus/adapter.yaml").read_text())
    (rule,) = (
        rule
        for rule in adapter["rules"]["external"]
        if rule["name"]["as"] == metric["external"]["metric"]["name"]
    )
    query: str = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"])
    return query.replace("<<.LabelMatchers>>", "")


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
    async with App(office(), metrics=0) as app, Client.connect(app=app) as client:
        for text in ("x", "fail", "ask"):
            await client.send(text)
        return await scrape(port(app))


WHOLE = {
    *("dragoman_tasks", "dragoman_tasks_set_aside", "dragoman_webhooks"),
    *("dragoman_queue_tasks", "dragoman_queue_oldest_seconds"),
}
"""What every process tells of the whole store."""


@pytest.mark.parametrize("where", queries())
def test_what_all_processes_tell_alike_is_not_summed(where: str) -> None:
    query = filled(queries()[where])
    for name in WHOLE & set(re.findall(r"\bdragoman_[a-z_]+", query)):
        if where in ("agent",):  # a list of its labels
            continue
        inner = rf"max by \([a-z, ]+\) \({name}(\{{[^}}]*\}})?\)"
        assert len(re.findall(rf"\b{name}\b", query)) == len(re.findall(inner, query))


@pytest.mark.parametrize("where", queries())
def test_no_query_needs_a_name_of_the_job(where: str) -> None:
    """Prometheus' configuration chooses it: where pods are found by annotations, it is theirs."""
    for matchers in re.findall(r"\{([^}]*)\}", queries()[where]):
        assert "job" not in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)


async def test_what_alerts_watch_is_told_from_the_start() -> None:
    """Prometheus sees no increase in a series that first appears with its first fault."""
    async with App(office(), metrics=0, grpc_port=0) as app, Client.connect(app=app) as client:
        before = await scrape(port(app))
        checked = 0
        for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]:
            for rule in group["rules"]:
                for name, matchers in re.findall(
                    r"(?:rate|increase)\((\w+)(?:\{([^}]*)\})?\[", rule["expr"]
                ):
                    wanted = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
                    for label, value in wanted:
                        for one in value.split("|"):
                            told = before.having(name, **{label: one})
                            assert told, f"{rule['alert']}: {name} {label}={one}"
                            assert set(told.values()) == {0}
                            checked += 1
                    assert before.having(name)
        assert checked >= 6
        await client.send("fail")
        await client.send("x")
        after = await scrape(port(app))
    for name in ("dragoman_requests_total", "dragoman_turn_seconds_count"):
        new = after.having(name).keys() - before.having(name).keys()
        assert not new, "it would have no rate"
        assert after.get(name) == 2


async def test_every_metric_in_a_query_exists(scraped: Scrape) -> None:
    declared = {metric.name: set(metric.labels) for metric in Metrics().families}
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
    from dragoman.model import errors

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
