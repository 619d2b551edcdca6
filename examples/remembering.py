"""An agent that remembers the conversation: all messages of a context, over all of its tasks."""

from dragoman import Agent, Turn

agent = Agent("Listener", description="Remembers what you like.")


@agent.skill(tags=["talk"], examples=["I like tea"])
async def listen(turn: Turn) -> str:
    """Remembers what the caller has said."""
    said = [one.text for one in await turn.conversation(limit=50) if one.kind == "message"]
    return f"You said: {', '.join([*said, turn.text])}"
