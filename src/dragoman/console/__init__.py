"""A page in the browser that shows a running system: tasks, their logs, agents, webhooks.

`dragoman serve` offers it on a terminal of this machine. In code:

    app = App(agent, auth=…)
    console = Console(open=True)
    app.answer_first(console, close=console.close)
"""

from dragoman.console.console import Console
from dragoman.console.remote_agent import RemoteAgent
from dragoman.console.stored_tasks import StoredTasks

__all__ = ["Console", "RemoteAgent", "StoredTasks"]
