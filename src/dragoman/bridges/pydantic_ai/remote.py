"""Remote agents as a toolset of Pydantic AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from pydantic import TypeAdapter
from pydantic_ai import BinaryContent, DeferredToolRequests, DeferredToolResults, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry
from pydantic_ai.messages import DocumentUrl, ImageUrl
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

from dragoman import Part
from dragoman.bridges import remote
from dragoman.bridges.remote import Remote, RemoteAnswer, RemoteFailed, RemoteQuestion, RemoteTool
from dragoman.client import Options

_ARGUMENTS: Any = TypeAdapter(dict[str, Any]).validator


def toolset(
    *agents: Remote, id: str = "remote-agents", **options: Unpack[Options]
) -> RemoteToolset:
    """The skills of remote agents as tools: `Agent(model, toolsets=[toolset(url)])`.

    If an agent asks, the call is deferred as one that needs approval; the question is in its
    metadata. `answered` makes the results with which the run continues."""
    return RemoteToolset(agents, id, options)


def answered(requests: DeferredToolRequests, answers: Mapping[str, Any]) -> DeferredToolResults:
    """The results of deferred calls whose remote agents have asked: `answers` has what is said to
    them, by the id of the call."""
    results = DeferredToolResults()
    for id, said in answers.items():
        answer(results, id, requests.metadata[id], said)
    return results


def answer(results: DeferredToolResults, id: str, about: Mapping[str, Any], said: Any) -> None:
    """Add an answer to the question of a remote agent."""
    results.approvals[id] = True
    results.metadata[id] = {**about, "answer": said}


class RemoteToolset(AbstractToolset[Any]):
    """See `toolset`."""

    def __init__(self, agents: tuple[Remote, ...], id: str, options: Options) -> None:
        self._id = id
        self._agents = agents
        self._options = options
        self._tools: dict[str, RemoteTool] | None = None

    @property
    def id(self) -> str:
        """See `AbstractToolset.id`."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """See `AbstractToolset.get_tools`. The cards are read once."""
        if self._tools is None:
            found = await remote.tools(*self._agents, **self._options)
            self._tools = {tool.name: tool for tool in found}
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name,
                    description=tool.description,
                    parameters_json_schema=tool.parameters,
                ),
                max_retries=1,
                args_validator=_ARGUMENTS,
            )
            for name, tool in self._tools.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """See `AbstractToolset.call_tool`."""
        await self.get_tools(ctx)
        assert self._tools is not None
        called = self._tools[name]
        conversation = ctx.conversation_id or ctx.run_id or ""
        key = remote.key(conversation, ctx.tool_call_id or "")
        about = ctx.tool_call_metadata if ctx.tool_call_approved else None
        number = about["number"] if about else 0
        try:
            if about:
                found = await called.answer(about["task"], about["answer"], key=f"{key}:{number}")
            else:
                found = await called.call(tool_args, key=key, conversation=conversation)
        except RemoteFailed as error:
            raise ModelRetry(str(error)) from error
        except RemoteQuestion as asked:
            raise ApprovalRequired({**asked.value, "number": number + 1}) from asked
        return _returned(found)


def _returned(found: RemoteAnswer) -> Any:
    value = found.text if found.data is None else found.data
    return ToolReturn(value, content=list(map(_file, found.files))) if found.files else value


def _file(part: Part) -> Any:
    kind = part.media_type or "application/octet-stream"
    if part.raw is not None:
        return BinaryContent(part.raw, media_type=kind)
    return ImageUrl(part.url or "") if kind.startswith("image/") else DocumentUrl(part.url or "")
