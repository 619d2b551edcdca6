"""How a call would look in each version and binding: the requests are made, and not sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from dragoman import A2AError, AgentCard, Message
from dragoman.client import Client, TransportRequest, read_card
from dragoman.client.grpc_json import grpc_json
from dragoman.console.http import ConsoleError
from dragoman.console.shapes import RequestView

FORMS = (
    *(("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")),
    *(("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("GRPC", "0.3"), ("JSONRPC", "0.1")),
)
"""The bindings and versions that are shown."""


class NotSent(Exception):
    """The request was made, and is not sent."""


class NoTransport:
    """A transport that keeps the first request and sends none."""

    grpc = True

    def __init__(self) -> None:
        self.request: TransportRequest | None = None

    async def send(self, request: TransportRequest) -> NoReturn:
        """Keep the request."""
        self.request = self.request or request
        raise NotSent

    async def close(self) -> None:
        """There is nothing to close."""


async def requests(
    card: Mapping[str, Any], url: str, method: str, params: Mapping[str, Any]
) -> Sequence[RequestView]:
    """The call in each form. Raises ConsoleError if nothing is known about the method."""
    if method not in CALLS:
        raise ConsoleError(f"method: {method[:40]!r} is not a call of the chat")
    return [await _one(card, url, method, params, *form) for form in FORMS]


async def _one(
    card: Mapping[str, Any],
    url: str,
    method: str,
    params: Mapping[str, Any],
    binding: str,
    version: str,
) -> RequestView:
    title = f"{binding} {version}"
    transport = NoTransport()
    try:
        known = read_card(card)
        form = known.supported_interfaces[0].replace(
            url=_address(known, url, binding), protocol_binding=binding, protocol_version=version
        )
        known = known.replace(supported_interfaces=(form,), signatures=())
        client = Client.connect(known, transport=transport, attempts=1, bindings=[binding])
        async with client:
            await CALLS[method](client, params)
    except (A2AError, msgspec.ValidationError, ValueError, ModuleNotFoundError) as error:
        return RequestView(title=title, error=str(error))
    except NotSent:
        pass
    made = transport.request
    if made is None:
        return RequestView(title=title, error="this version has no such call")
    body = made.body if isinstance(made.body, bytes) else b""
    packed = made.url.startswith("grpc")
    return RequestView(
        title=title,
        method="gRPC" if packed else made.method,
        url=made.url,
        headers=dict(made.headers),
        body=grpc_json(made.url, body) if packed else body.decode("utf-8", "replace"),
    )


def _address(card: AgentCard, url: str, binding: str) -> str:
    """Where the call would go: to the card's interface with this binding, or to one like it."""
    for each in card.supported_interfaces:
        if each.protocol_binding.upper() == binding:
            scheme = "" if "://" in each.url else "grpc://"
            return f"{scheme}{each.url}"
    if binding == "GRPC":
        return f"grpc://{urlsplit(url).netloc}"
    if url.startswith("grpc"):
        url = f"http://{urlsplit(url).netloc}"
    return url.rstrip("/") + ("/" if binding == "JSONRPC" else "")


def _message(params: Mapping[str, Any]) -> Message:
    return msgspec.convert(params["message"], Message)


async def _send(client: Client, params: Mapping[str, Any]) -> None:
    await client.send(_message(params))


async def _stream(client: Client, params: Mapping[str, Any]) -> None:
    async with client.stream(_message(params)) as stream:
        async for _ in stream:
            break


async def _get(client: Client, params: Mapping[str, Any]) -> None:
    await client.task(params["id"]).get()


async def _list(client: Client, params: Mapping[str, Any]) -> None:
    history, artifacts = params.get("historyLength"), params.get("includeArtifacts")
    context, page = params.get("contextId", ""), params.get("pageSize")
    found = client.list(context=context, history=history, artifacts=artifacts, page=page)
    await anext(aiter(found))


async def _cancel(client: Client, params: Mapping[str, Any]) -> None:
    await client.task(params["id"]).cancel()


async def _subscribe(client: Client, params: Mapping[str, Any]) -> None:
    async for _ in client.task(params["id"]).subscribe():
        break


CALLS: Mapping[str, Callable[[Client, Mapping[str, Any]], Awaitable[None]]] = {
    "SendMessage": _send,
    "SendStreamingMessage": _stream,
    "GetTask": _get,
    "ListTasks": _list,
    "CancelTask": _cancel,
    "SubscribeToTask": _subscribe,
}
"""The calls of the chat."""
