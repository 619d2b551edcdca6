"""A remote agent that talks: `dragoman serve talking_desk:agent`."""

from __future__ import annotations

from script import note

from dragoman import Agent, Part, Turn

agent = Agent("Talker", description="Talks.")


@agent.handler(durable=True)
async def talk(turn: Turn) -> None:
    """Ask, and say in several pieces what was answered."""
    note(f"talk {turn.text}")
    if turn.text == "refuse":
        await turn.emit(turn.reject("I do not talk about that."))
        return
    asked = await turn.ask_for("To whom?")
    note(f"to {asked.text}")
    await turn.emit(turn.working("Thinking"))
    for word in ("Good ", "day, ", asked.text):
        await turn.emit(turn.write(word))
    await turn.emit(turn.artifact(Part(raw=b"pixels", media_type="image/png", filename="a.png")))
