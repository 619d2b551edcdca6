"""The shortest agent. Serve it with `dragoman serve examples.hello:agent`."""

from dragoman import Agent

agent = Agent("Greeter", description="Greets people.")


@agent.skill(tags=["talk"])
def greet(text: str) -> str:
    """Greets the person that the message names."""
    return f"Hello, {text or 'world'}!"
