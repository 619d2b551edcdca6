"""What a tool asks, and what the answers of a client mean."""

from __future__ import annotations

from typing import Any

import mcp.types as mcp
import pytest

from dragoman.mcp.client.tool_questions import NotUnderstood, Question, question, reply
from dragoman.testing import message

FIELDS = {
    "seats": {"type": "integer", "minimum": 1},
    "window": {"type": "boolean", "description": "At the window"},
    "meals": {"type": "array", "items": {"enum": ["fish", "soup"]}},
}
FORM = Question(
    text="Which?", schema={"type": "object", "properties": FIELDS, "required": ["seats"]}
)
ONE = Question(text="Who?", schema={"type": "object", "properties": {"name": {"type": "string"}}})
CONFIRM = Question(text="Sure?", schema={"type": "object", "properties": {}})
LOGIN = Question(text="Log in", url="https://login.example/")


@pytest.mark.parametrize(
    ("asked", "said", "content"),
    [
        (FORM, {"seats": 2}, {"seats": 2}),
        (FORM, {"seats": 2.0}, {"seats": 2}),
        (FORM, "seats: 2", {"seats": 2}),
        (FORM, "- Seats = 2\nwindow: yes\nhello", {"seats": 2, "window": True}),
        (FORM, "seats: 2\nmeals: fish, soup", {"seats": 2, "meals": ["fish", "soup"]}),
        (ONE, "Ada: the first", {"name": "Ada: the first"}),
        (ONE, "name: Ada", {"name": "Ada"}),
        (ONE, {"rooms": [1]}, {"name": '{"rooms": [1]}'}),
        (CONFIRM, "yes", {}),
        (CONFIRM, {}, {}),
        (LOGIN, "done", None),
    ],
    ids=str,
)
def test_answers_that_are_understood(asked: Question, said: Any, content: Any) -> None:
    found = reply(asked, message(said))
    assert found.action == "accept"
    assert str(found.content) == str(content)  # 2.0 is not 2


@pytest.mark.parametrize(
    ("asked", "said", "action"),
    [
        (FORM, "decline", "decline"),
        (FORM, "Decline.", "decline"),
        (FORM, "The user has declined to answer.", "decline"),
        (FORM, "cancel", "cancel"),
        (FORM, {"action": "decline"}, "decline"),
        (LOGIN, "cancel", "cancel"),
        (CONFIRM, "no", "decline"),
    ],
    ids=str,
)
def test_answers_that_refuse(asked: Question, said: Any, action: str) -> None:
    assert reply(asked, message(said)).action == action


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "seats: is required"),
        ({"seats": 0}, "seats: must be at least 1"),
        ({"seats": "two"}, "seats: expected an integer"),
        ("window: perhaps\nseats: 1", "window: expected a boolean"),
        ("two, please", "seats: is required"),
        ([2], "expected an object"),
    ],
    ids=str,
)
def test_answers_that_do_not_fit(said: Any, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        reply(FORM, message(said))


def test_a_question_says_its_fields_in_words_and_as_data() -> None:
    text, data = FORM.parts()
    assert text.text is not None
    assert "seats (whole number)" in text.text
    assert "window (yes or no): At the window" in text.text
    assert data.data == FORM.schema
    assert "https://login.example/" in str(LOGIN.parts()[0].text)


def test_what_a_server_asks_is_cleaned_and_bounded() -> None:
    params = mcp.ElicitRequestFormParams(
        message="Who\u200b?" + "x" * 10_000, requested_schema={"type": "object", "properties": {}}
    )
    asked = question(params)
    assert asked.text.startswith("Who?")
    assert len(asked.text) <= 4000
    large = {"type": "object", "properties": {"x": {"description": "x" * 100_000}}}
    with pytest.raises(ValueError, match="too large"):
        question(mcp.ElicitRequestFormParams(message="Who?", requested_schema=large))


@pytest.mark.parametrize(
    "url", ["http://login.example/", "ftp://x/", "https://a:b@x.example/", "javascript:alert(1)"]
)
def test_addresses_that_a_client_is_not_sent_to(url: str) -> None:
    with pytest.raises(ValueError, match="address that is refused"):
        question(mcp.ElicitRequestURLParams(message="Log in", url=url, elicitation_id="1"))
