"""MCP's extension for tasks (SEP-2663), for servers with tools that run only as tasks.

A task of the server continues by itself. The log of our task has its id, so any replica can follow
it, also after a restart.
"""

from __future__ import annotations

from typing import Any, Literal

import mcp.types as mcp
from mcp import MCPError
from pydantic import ValidationError

TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the extension."""
GOING_ON = ("working", "input_required")


class TaskParams(mcp.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: mcp.InputResponses


class GetTask(mcp.Request[TaskParams, Literal["tasks/get"]]):
    """Asks how a task is."""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class UpdateTask(mcp.Request[UpdateParams, Literal["tasks/update"]]):
    """Answers what a task asks."""

    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class CancelTask(mcp.Request[TaskParams, Literal["tasks/cancel"]]):
    """Cancels a task."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param = "taskId"


class TaskBegun(mcp.Result):
    """The result of a call that has become a task."""

    result_type: Literal["task"] = "task"
    task_id: str


class TaskState(mcp.Result):
    """How a task is."""

    task_id: str
    status: str
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: mcp.InputRequests | None = None
    result: dict[str, Any] | None = None
    """What the call would have returned; only of a completed task."""
    error: mcp.ErrorData | None = None


def needs_tasks(error: MCPError) -> bool:
    """Whether a server has refused a call because the client must declare the extension. Then the
    tool has not begun."""
    if error.error.code != mcp.MISSING_REQUIRED_CLIENT_CAPABILITY:
        return False
    try:
        data = mcp.MissingRequiredClientCapabilityErrorData.model_validate(error.error.data)
    except ValidationError:
        return False
    return TASKS in (data.required_capabilities.extensions or {})
