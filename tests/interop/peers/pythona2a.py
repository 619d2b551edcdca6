"""The desk on python-a2a, which answers with a whole task: it knows neither chunks nor messages in
place of tasks, and only text comes back."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading
from typing import Any

from announcing import end_with_parent
from python_a2a import A2AServer, AgentCard, AgentSkill, TaskState, TaskStatus
from python_a2a.server.http import create_flask_app
from werkzeug.serving import make_server


class Desk(A2AServer):
    """Does what the text says; there is no one to wait for, so it does not."""

    def handle_task(self, task: Any) -> Any:
        """Do it."""
        text = heard(task.message or {})
        task.status = TaskStatus(TaskState.COMPLETED)
        match text.split():
            case ["ask"]:
                task.status = TaskStatus(TaskState.INPUT_REQUIRED, said("Which?"))
            case ["wait"]:
                task.status = TaskStatus(TaskState.WAITING)
            case ["fail"]:
                task.status = TaskStatus(TaskState.FAILED, said("as told"))
            case ["crash"]:
                raise RuntimeError("as told")
            case ["count", number]:
                task.artifacts = [{"parts": [part(f"{n},") for n in range(int(number))]}]
            case _:
                task.artifacts = [{"parts": [part(text)]}]
        return task


def heard(message: dict[str, Any]) -> str:
    """The text of a message, which is in its own form after a send, and as it came in a stream."""
    if "content" in message:
        return str(message["content"].get("text", ""))
    return "".join(part.get("text", "") for part in message.get("parts", []))


def part(text: str) -> dict[str, Any]:
    """A part that is text."""
    return {"type": "text", "text": text}


def said(text: str) -> dict[str, Any]:
    """What the agent says."""
    return {"role": "agent", "parts": [part(text)]}


def main() -> None:
    """Serve it; print the URL that it listens on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--public", metavar="URL")
    given = parser.parse_args()
    card = AgentCard(
        name="Desk",
        description="Does what the text says.",
        url="",
        skills=[AgentSkill(id="desk", name="desk", description="Works.", tags=["desk"])],
    )
    server = make_server("127.0.0.1", given.port, create_flask_app(Desk(card)), threaded=True)
    url = f"http://127.0.0.1:{server.server_port}"
    card.url = given.public or url
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr):  # it prints what it is asked for
        server.serve_forever()


if __name__ == "__main__":
    main()
