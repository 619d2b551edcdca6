"""Requests as schemes see them, and an agent that says who has come."""

from __future__ import annotations

import inspect
from typing import Any

import httpx

from dragoman import Agent, Turn
from dragoman.model.caller import Request
from tests.harness.trust import NOBODY

MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}


def request(token: str = "", kind: str = "Bearer", **headers: str) -> Request:
    """A request that shows a token."""
    told = {"authorization": f"{kind} {token}"} if token else {}
    return Request("POST", "/", "", {**told, **headers}, "10.0.0.1")


async def identified(scheme: Any, of: Request) -> Any:
    """What a scheme or a gate says."""
    found = scheme.identify(of)
    return await found if inspect.isawaitable(found) else found


def doorman(**options: Any) -> Agent:
    """An agent that says who has come; one of its skills needs the scope `book`."""
    agent = Agent("Doorman", description="Says who you are.", **options)

    @agent.handler
    async def greet(turn: Turn) -> str:
        """Say it."""
        return f"{turn.caller.identity}:{' '.join(sorted(turn.caller.scopes))}"

    @agent.skill(scopes=["book"], tags=["travel"])
    async def booking(turn: Turn) -> str:
        """Book it."""
        return "booked"

    return agent


async def send(url: str, token: str = "", **headers: str) -> httpx.Response:
    """Say hello over HTTP+JSON."""
    if token:
        headers["authorization"] = f"Bearer {token}"
    async with httpx.AsyncClient(timeout=20, verify=NOBODY) as http:
        return await http.post(f"{url}/message:send", json=MESSAGE, headers=headers)


def said(answer: httpx.Response) -> str:
    """What the agent said."""
    assert answer.status_code == 200, answer.text
    return answer.json()["task"]["artifacts"][0]["parts"][0]["text"]
