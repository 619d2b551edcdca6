"""The scope of a step: ids that do not depend on what else the turn says."""

from __future__ import annotations

from dragoman import Message, Part, Role
from dragoman.agent.running_step import StepScope, current_step, enter, leave, running


def message(id: str, text: str) -> Message:
    return Message(message_id=id, role=Role.AGENT, parts=(Part(text=text),))


def test_a_step_is_known_by_its_name_and_number() -> None:
    scopes = [
        StepScope("t:1:a:0", "a", 0),
        StepScope("t:1:a:1", "a", 1),
        StepScope("t:1:b:0", "b", 0),
    ]
    assert len({scope.digest for scope in scopes}) == 3
    assert StepScope("another turn", "a", 0).digest == scopes[0].digest


def test_the_current_step() -> None:
    assert (current_step(), running()) == ("", None)
    token = enter(StepScope("key", "name", 0))
    try:
        assert current_step() == "key"
    finally:
        leave(token)
    assert current_step() == ""


def test_a_message_is_relayed_once() -> None:
    scope = StepScope("key", "name", 0)
    first = scope.relayed(message("m", "one"))
    assert first == StepScope("other", "other", 1).relayed(message("m", "one"))
    assert scope.relayed(message("m", "one")) == ""
    assert scope.relayed(message("m", "two")) not in ("", first)


def test_messages_without_an_id_are_counted() -> None:
    scope = StepScope("key", "name", 0)
    ids = [scope.relayed(message("", "same")) for _ in range(3)]
    assert len({*ids, ""}) == 4


def test_another_attempt_replaces_what_the_last_one_wrote() -> None:
    scope = StepScope("key", "name", 0)
    streams = {("name", "mine"): "1.x.1", ("name", "of the handler"): "1.1"}
    scope.opened["name", "mine"] = "1.x.1"
    scope.artifacts = scope.messages = 2
    scope.sends = {"content": ["answered", "not answered"]}
    scope.answered.add("answered")
    scope.again(streams)
    assert streams == {("name", "of the handler"): "1.1"}
    assert (scope.opened, scope.artifacts, scope.messages) == ({}, 0, 2)
    assert scope.sends == {"content": ["answered"]}
