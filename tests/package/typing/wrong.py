"""What a user may get wrong: type checkers find each line that says `wrong`."""

import dragoman
from dragoman import Agent, App, AppOptions, Turn, UserError
from dragoman.client import Client
from dragoman.registry import Registry

agent = Agent("Echo", description="Echoes.", colour="red")  # wrong
agent.serve(prot=8080)  # wrong
agent.serve(port="8080")  # wrong
_ = agent.skil  # wrong

App(agent, max_boddy=3)  # wrong
App(agent, max_body="3 MiB or so", push=True)  # wrong
App(agent, log_level="loud")  # wrong
App(agent, store=3)  # wrong
App(agent).for_caller("ann")  # wrong
App(agent, workers=4)  # wrong
App("booking:agent")  # wrong
dragoman.serve(agent, workers=4)  # wrong
dragoman.serve("booking:agent")  # wrong
options: AppOptions = {"max_boddy": 3}  # wrong

UserError(ValueError("inside"))  # wrong
UserError()  # wrong


@agent.skill(asks=True)  # wrong
def ask(city: str) -> str:
    """Say it again."""
    return city


@agent.skill(one_at_a_time="task")  # wrong
async def order(turn: Turn) -> None:
    """Order something."""
    found = await turn.step("count", len, "abc")
    found.upper()  # wrong
    await turn.sleep(weeks=1)  # wrong
    await turn.hand_over(seconds=3)  # wrong
    await turn.wait("task")  # wrong
    _ = (await turn.hand_over()).task  # wrong
    async with dragoman.resume(3) as task:  # wrong
        await task.done()  # wrong


@agent.handler
def echo(turn: Turn) -> int:
    """Say it again."""
    _ = turn.made  # wrong
    _ = turn.sound  # wrong
    turn.artifact("text", nam="result")  # wrong
    return turn.text  # wrong


@agent.skill
async def remember(turn: Turn) -> None:
    """Remember what was said."""
    await turn.save_context()  # wrong
    await turn.save_context(1, version=2)  # wrong
    await turn.context_saved(default=1)  # wrong


async def share(app: App) -> None:
    """What applications beside agents use."""
    await app.reserve("space", "key", b"value")  # wrong
    await app.reserve("space", "key", "value", keep=1)  # wrong
    await app.secret(b"cookies")  # wrong


async def call(client: Client) -> None:
    """Call an agent."""
    Client.connect("https://agent.example", time_out=5.0)  # wrong
    _ = client.rotate  # wrong
    client.sned("hello")  # wrong
    await client.send("hello", skil="echo")  # wrong
    await client.call_skill(5)  # wrong
    await Registry("https://agents.example").search("x", tag=["y"])  # wrong
    Client.connect(Registry("https://agents.example"))  # wrong
    await client.call_skill("book", options={"tsk": "t"})  # wrong
    count = await client.call_skill("count", returns=int)
    count.upper()  # wrong
    _ = client.skills["book"].title  # wrong
