"""An agent that has two others do the work: `dragoman serve examples.orchestrating:desk`, and
`dragoman send http://127.0.0.1:8000 "Lunch for four"`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman import Agent, Turn
from dragoman.orchestrator import Member, Orchestrator, Ref, Step

shop = Agent("Shop", description="Sells food.")
kitchen = Agent("Kitchen", description="Cooks.")

NUMBERS = {"two": 2, "three": 3, "four": 4}


@shop.skill
async def buy(turn: Turn, people: int) -> dict[str, int]:
    """Buys the ingredients for a meal."""
    await turn.emit(turn.working("Going round the market"))
    return {"tomatoes": 2 * people, "onions": people}


@kitchen.skill(durable=True)
async def cook(turn: Turn, tomatoes: int, onions: int) -> str:
    """Cooks a meal."""
    answer = await turn.ask_for("Soup or salad?")
    return f"{answer.text.capitalize()} of {tomatoes} tomatoes and {onions} onions"


def plan(turn: Turn, members: Mapping[str, Member]) -> list[Step]:
    """First shop, then cook with what was bought."""
    words = re.findall(r"\w+", turn.text.lower())
    people = next((NUMBERS[word] for word in words if word in NUMBERS), 2)
    bought = {name: Ref("groceries", name) for name in ("tomatoes", "onions")}
    return [
        Step("groceries", skill="buy", input={"people": people}),
        Step("meal", skill="cook", input=bought),
    ]


desk = Orchestrator("Lunch Desk", agents=[shop, kitchen], plan=plan, description="Makes lunch.")
