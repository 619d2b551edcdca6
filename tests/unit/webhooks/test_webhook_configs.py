"""Push configs that are refused, and why."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.harness.webhooks import pushing, receiving


def violation(response: httpx.Response) -> tuple[str, str]:
    """The one field that is wrong, and why."""
    assert response.status_code == 400, response.text
    details = response.json()["error"]["details"]
    ((found,),) = [d["fieldViolations"] for d in details if "fieldViolations" in d]
    return found["field"], found["description"]


LOCAL = "the address is not public (loopback)"
HEADER = "cannot be sent in a header"


@pytest.mark.clause("push.ssrf")
@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({"url": "https://127.0.0.1/"}, "url", LOCAL),
        ({"url": "https://169.254.169.254/"}, "url", "the address is not public (link-local)"),
        ({"url": "https://10.0.0.1/"}, "url", "the address is not public (private)"),
        ({"url": "https://db.internal/"}, "url", "the host is a local name"),
        ({"url": "http://hooks.example/"}, "url", "the URL is not https"),
        ({"url": "https://free.example/", "token": "a\nb"}, "token", HEADER),
        ({"url": "https://free.example/", "token": "ü"}, "token", HEADER),
        (
            {
                "url": "https://free.example/",
                "authentication": {"scheme": "Bearer", "credentials": "a\r\nHost: x"},
            },
            "authentication.credentials",
            HEADER,
        ),
        (
            {
                "url": "https://free.example/",
                "authentication": {"scheme": "Beärer", "credentials": "a"},
            },
            "authentication.scheme",
            HEADER,
        ),
    ],
)
async def test_a_config_that_cannot_be_served_is_refused(
    config: dict[str, Any], field: str, reason: str
) -> None:
    async with pushing(egress_allow=["free.example"]) as sender:
        task = await sender.send("ask")
        created = await sender.ask(f"/tasks/{task}/pushNotificationConfigs", **config)
        assert violation(created) == (field, reason)
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
        configuration = {"taskPushNotificationConfig": config}
        sent = await sender.ask("/message:send", message=message, configuration=configuration)
        at = f"configuration.taskPushNotificationConfig.{field}"
        assert violation(sent) == (at, reason)
        found = await sender.ask("/tasks", "GET")
        assert found.json()["totalSize"] == 1, "a refused send leaves no task"
        listed = await sender.ask(f"/tasks/{task}/pushNotificationConfigs", "GET")
        assert not listed.json().get("configs")


@pytest.mark.clause("capability.push", "capability.push-in-send")
async def test_without_push_there_are_no_webhooks() -> None:
    async with receiving() as inbox, pushing(push=False) as sender:
        task = await sender.send("ask")
        path = f"/tasks/{task}/pushNotificationConfigs"
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
        configuration = {"taskPushNotificationConfig": {"url": inbox.url}}
        for response in (
            await sender.ask(path, url=inbox.url),
            await sender.ask(path, "GET"),
            await sender.ask(f"{path}/x", "GET"),
            await sender.ask(f"{path}/x", "DELETE"),
            await sender.ask("/message:send", message=message, configuration=configuration),
        ):
            (info,) = response.json()["error"]["details"]
            assert info["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
        card = (await sender.ask("/.well-known/agent-card.json", "GET")).json()
        assert not card["capabilities"].get("pushNotifications")
