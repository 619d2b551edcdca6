"""What a task may cost: calls of agents, tokens of models, time, money, and how deep it may be
nested."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from dragoman.client import Answerer
from dragoman.orchestrator.model import Usage


class Payer(Protocol):
    """Pays for the calls of agents: a `dragoman.payments.Wallet`."""

    def part(self, most: str) -> Answerer:
        """What pays at most this amount for one task of the orchestrator, such as `0.50 USDC`.
        Raises ValueError if this is no amount."""


class Budget(Struct, frozen=True, kw_only=True):
    """The maximum cost of one task. At the limit the task ends with the results so far."""

    calls: int = 50
    """Messages to agents."""
    model_calls: int = 30
    tokens: int = 500_000
    """Tokens of the model, input and output."""
    seconds: float = 7 * 86400.0
    """From the first message of the task, with the time that it waits for answers."""
    steps: int = 50
    """Steps of a plan."""
    rounds: int = 8
    """How often a plan may be changed. A model that only calls further agents changes none."""
    depth: int = 4
    """How many agents may have passed a request on before it comes here."""
    money: str = ""
    """What the steps may pay in all, such as `0.50 USDC`; empty if they may pay nothing. A step
    that would cost more fails; the others go on."""


class Spent:
    """What a task has cost so far. A replay of the log computes it again."""

    def __init__(self, budget: Budget, began: datetime) -> None:
        self.budget = budget
        self.began = began
        self.calls = self.model_calls = self.rounds = 0
        self.usage = Usage()

    @property
    def over(self) -> str:
        """Which limit is reached, in words; empty if none is."""
        budget = self.budget
        if self.calls >= budget.calls:
            return f"the budget of {budget.calls} calls of agents is used up"
        if self.rounds > budget.rounds:
            return f"the plan was changed {budget.rounds} times"
        return self.model_over

    @property
    def model_over(self) -> str:
        """Which limit of the model is reached."""
        budget = self.budget
        if self.model_calls >= budget.model_calls:
            return f"the budget of {budget.model_calls} calls of the model is used up"
        if self.usage.tokens >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is used up"
        return ""

    def left(self, now: datetime) -> float:
        """The seconds that are left."""
        return self.budget.seconds - (now - self.began).total_seconds()
