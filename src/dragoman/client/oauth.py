"""Access tokens from an authorization server, by OAuth 2 and OpenID Connect, for machines and
people."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import os
import secrets
import sys
import time
import webbrowser
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.credentials import AuthRequest, CredentialsNotSent, private
from dragoman.client.limits import CARD, TooLarge
from dragoman.client.login_redirect import PATIENCE, Callback, Denied, Redirect, denied
from dragoman.client.transport import Transport, TransportRequest, Unreachable, origin, read_all
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import OAuthFlows

Flow = Literal["", "client", "code", "device"]

EARLY = 30.0
"""A token is renewed this many seconds before it expires, or after nine tenths of a short life."""
METADATA = "/.well-known/oauth-protected-resource"


class LoginPrompt(Struct, frozen=True):
    """The URL where a person must allow the client, and the code to type there."""

    url: str
    code: str = ""


class TokenGrant(Struct, frozen=True):
    """The tokens that an authorization server issued."""

    access: str
    refresh: str = ""
    until: float = float("inf")
    """The Unix time when the token must be renewed."""

    def __repr__(self) -> str:
        return "TokenGrant(…)"

    @classmethod
    def read(cls, answer: Mapping[str, Any], before: str = "") -> TokenGrant:
        """Read a token response. The old refresh token stays if the response has none."""
        access, life = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(access, str) or not access:
            raise Unauthenticated("the response of the authorization server has no access_token")
        until = float("inf")
        with suppress(TypeError, ValueError):
            until = time.time() + max(float(life) - EARLY, float(life) * 0.9)  # type: ignore[arg-type]
        return cls(access, str(answer.get("refresh_token") or before), until)


class Endpoints(Struct, frozen=True, kw_only=True):
    """The URLs of a flow."""

    flow: Flow
    token: str
    refresh: str = ""
    person: str = ""
    """Where a person is sent, or where a device code comes from."""
    resource: str = ""
    """The audience of the token; empty if none is requested."""


class OAuth:
    """Requests, stores and renews access tokens, with the flow that the card offers: client
    credentials, authorization code with PKCE, or device code. If there are several, `flow` says
    which.

    The token is requested for this agent only (RFC 8707). `resource` is the agent's name at the
    authorization server, by default its URL. If it is empty, it is not sent, for servers that
    refuse it. The client secret goes only to the card's origin and to the origin of `issuer`.
    `tell` shows a person the login URL; by default it prints it and opens a browser. `file` stores
    the tokens, readable by its owner only, so that nobody has to log in again. For a code, a
    server on 127.0.0.1 at `port` waits for the browser; a program that already serves the browser
    can give a `redirect` instead, which is called with the `state` of the login.
    """

    bearing = True

    def __init__(
        self,
        client_id: str,
        client_secret: str = "",
        *,
        issuer: str = "",
        resource: str | None = None,
        scopes: Sequence[str] = (),
        flow: Flow = "",
        tell: Callable[[LoginPrompt], Awaitable[None] | None] | None = None,
        port: int = 0,
        redirect: Callable[[str], AbstractAsyncContextManager[Redirect]] | None = None,
        file: str | Path | None = None,
    ) -> None:
        self._id = client_id
        self._secret = client_secret
        self.issuer = origin(issuer) if issuer else ""
        if resource and (not urlsplit(resource).scheme or "#" in resource):
            raise ValueError(f"OAuth: resource={resource!r}: must be a URI without a fragment")
        self._resource = resource
        self._resources: dict[str, str] = {}
        """The resource names that agents publish, by their URL."""
        self._scopes = tuple(scopes)
        self._flow = flow
        self._tell = tell or _print_prompt
        self._redirect = redirect or (lambda state: Callback(port, state))
        self._file = Path(file) if file else None
        self._grants: dict[str, TokenGrant] | None = None
        self._flights: dict[str, Flight] = {}

    def __repr__(self) -> str:
        return f"OAuth({self._id!r}, …)"

    async def token(self, need: AuthRequest) -> str:
        """See `TokenProvider.token`."""
        # The token is for one agent only: another agent that names the same server must not get it.
        wanted = need.agent if self._resource is None else self._resource
        names = (origin(need.url), need.name, self.issuer, self._id, *self._wishes(need))
        key = " ".join((*names, *([f"resource={wanted}"] if wanted else [])))
        if self._grants is None:
            self._grants = self._load()
        previous = self._grants.get(key)
        if previous and previous.access != need.refused and time.time() < previous.until:
            return previous.access
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(self._obtain(need, key, previous))
        try:
            return (await flight.result()).access
        finally:
            if flight.over and self._flights.get(key) is flight:
                del self._flights[key]

    def _wishes(self, need: AuthRequest) -> tuple[str, ...]:
        wishes = tuple(dict.fromkeys((*need.scopes, *self._scopes)))
        if need.scheme.open_id_connect_security_scheme is not None and "openid" not in wishes:
            wishes = ("openid", *wishes)
        return wishes

    async def _obtain(self, need: AuthRequest, key: str, previous: TokenGrant | None) -> TokenGrant:
        endpoints = await self._endpoints(need)
        grant = None
        try:
            if previous and previous.refresh:
                with suppress(Unauthenticated):  # then start over
                    grant = await self._renew(need, endpoints, previous.refresh)
            if grant is None:
                grant = await _FLOWS[endpoints.flow](self, need, endpoints)
        except Denied as error:
            if endpoints.resource and (error.word == "invalid_target" or "resource" in str(error)):
                hint = (
                    f"{error} (the token was requested for {endpoints.resource}; use "
                    "OAuth(resource=…) to name another resource, or an empty one to omit "
                    "it)"
                )
                error.message, error.args = hint, (hint,)
            raise
        self._grants = {**(self._grants or {}), key: grant}
        self._save(key, grant)
        return grant

    # -- endpoints

    async def _endpoints(self, need: AuthRequest) -> Endpoints:
        oauth, openid = (
            need.scheme.oauth2_security_scheme,
            need.scheme.open_id_connect_security_scheme,
        )
        if openid is not None:
            found = await self._discover(need, openid.open_id_connect_url)
        elif oauth is None:
            raise CredentialsNotSent(f"{need.name} is not an OAuth scheme")
        else:
            found = self._offered(need, oauth.flows)
        for url in (found.token, found.refresh, found.person):
            if url:
                self._check(url, need)
        return replace(found, resource=await self._target(need))

    def _offered(self, need: AuthRequest, flows: OAuthFlows) -> Endpoints:
        """The flow of the card: the chosen one, or the first that is known."""
        found: dict[str, Endpoints] = {}
        if (code := flows.authorization_code) is not None:
            found["code"] = Endpoints(
                flow="code",
                token=code.token_url,
                refresh=code.refresh_url,
                person=code.authorization_url,
            )
        if (client := flows.client_credentials) is not None:
            found["client"] = Endpoints(
                flow="client", token=client.token_url, refresh=client.refresh_url
            )
        if (device := flows.device_code) is not None:
            found["device"] = Endpoints(
                flow="device",
                token=device.token_url,
                refresh=device.refresh_url,
                person=device.device_authorization_url,
            )
        if not found:
            raise Unauthenticated(
                f"{need.name}: the card offers only OAuth flows that are deprecated or unknown"
            )
        return found.get(self._flow) or next(iter(found.values()))

    async def _target(self, need: AuthRequest) -> str:
        """The audience of the token: the configured one, the one in the agent's metadata (RFC
        9728), or its URL. The metadata must not name another agent than the one that is called."""
        if self._resource is not None or not need.agent:
            return self._resource or ""
        if (resource := self._resources.get(need.agent)) is not None:
            return resource
        where = origin(need.agent)
        url = f"{where}{METADATA}{need.agent.removeprefix(where)}"
        found = need.agent
        with suppress(Unreachable, TimeoutError, TooLarge, PermissionError):
            async with asyncio.timeout(10):
                request = TransportRequest("GET", url, {"accept": "application/json"})
                response = await need.transport.send(request)
                body = await read_all(response, CARD)
            if response.status == 200:
                named = _resource_in(body)
                if origin(named) == where and f"{need.agent}/".startswith(f"{named.rstrip('/')}/"):
                    found = named
        self._resources[need.agent] = found
        return found

    async def _discover(self, need: AuthRequest, url: str) -> Endpoints:
        self._check(url, need)
        response = await need.transport.send(
            TransportRequest("GET", url, {"accept": "application/json"})
        )
        document = _parse_response(await read_all(response, CARD), response.status, url)
        issuer = str(document.get("issuer", ""))
        if url != f"{issuer.rstrip('/')}/.well-known/openid-configuration":
            raise Unauthenticated(f"{url} belongs to another issuer: {issuer or 'none'}")
        flow = self._flow or ("client" if self._secret else "code")
        person = {"code": "authorization_endpoint", "device": "device_authorization_endpoint"}
        names = ["token_endpoint", *([person[flow]] if flow in person else [])]
        for name in names:
            if not isinstance(document.get(name), str):
                raise Unauthenticated(f"{url} has no {name}, which the flow {flow!r} needs")
        return Endpoints(
            flow=flow,
            token=document["token_endpoint"],
            person=document[person[flow]] if flow in person else "",
        )

    def _check(self, url: str, need: AuthRequest) -> None:
        where = origin(url)
        if where not in need.origins and where != self.issuer:
            raise CredentialsNotSent(
                f"the card names the OAuth server {where or url}; if this is right, use "
                f"OAuth(…, issuer={where!r})"
            )
        if not private(url):
            raise CredentialsNotSent(f"OAuth requests are not sent over plain HTTP (to {where})")

    # -- flows

    async def _renew(self, need: AuthRequest, endpoints: Endpoints, refresh: str) -> TokenGrant:
        answer = await self._post(
            need.transport,
            endpoints.refresh or endpoints.token,
            grant_type="refresh_token",
            refresh_token=refresh,
            resource=endpoints.resource,
        )
        return TokenGrant.read(answer, refresh)

    async def _by_client(self, need: AuthRequest, endpoints: Endpoints) -> TokenGrant:
        scope = " ".join(self._wishes(need))
        answer = await self._post(
            need.transport,
            endpoints.token,
            grant_type="client_credentials",
            scope=scope,
            resource=endpoints.resource,
        )
        return TokenGrant.read(answer)

    async def _by_code(self, need: AuthRequest, endpoints: Endpoints) -> TokenGrant:
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        digest = hashlib.sha256(verifier.encode()).digest()
        async with self._redirect(state) as callback:
            query = {
                "response_type": "code",
                "client_id": self._id,
                "redirect_uri": callback.url,
                "state": state,
                "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
            }
            if wishes := self._wishes(need):
                query["scope"] = " ".join(wishes)
            if endpoints.resource:
                query["resource"] = endpoints.resource
            joint = "&" if "?" in endpoints.person else "?"
            await self._show_prompt(LoginPrompt(f"{endpoints.person}{joint}{urlencode(query)}"))
            code = await callback.code()
        answer = await self._post(
            need.transport,
            endpoints.token,
            grant_type="authorization_code",
            code=code,
            redirect_uri=callback.url,
            code_verifier=verifier,
            resource=endpoints.resource,
        )
        return TokenGrant.read(answer)

    async def _by_device(self, need: AuthRequest, endpoints: Endpoints) -> TokenGrant:
        scope = " ".join(self._wishes(need))
        resource = endpoints.resource
        asked = await self._post(need.transport, endpoints.person, scope=scope, resource=resource)
        try:
            device, code = str(asked["device_code"]), str(asked["user_code"])
            url = str(asked.get("verification_uri_complete") or asked["verification_uri"])
            pause = max(float(asked.get("interval", 5)), 1.0)
            life = min(float(asked.get("expires_in", PATIENCE)), 3600.0)
        except (KeyError, TypeError, ValueError):
            raise Unauthenticated(
                "the response of the authorization server has no valid device code"
            ) from None
        await self._show_prompt(LoginPrompt(url, code))
        end = time.monotonic() + life
        while True:
            await asyncio.sleep(pause)
            try:
                answer = await self._post(
                    need.transport,
                    endpoints.token,
                    grant_type="urn:ietf:params:oauth:grant-type:device_code",
                    device_code=device,
                    resource=resource,
                )
                return TokenGrant.read(answer)
            except Denied as error:
                if error.word == "slow_down":
                    pause += 5.0
                elif error.word != "authorization_pending":
                    raise
            except (Unreachable, TimeoutError):
                pause *= 2
            if time.monotonic() > end:
                raise Unauthenticated("nobody approved the login before the device code expired")

    async def _show_prompt(self, invitation: LoginPrompt) -> None:
        shown = self._tell(invitation)
        if inspect.isawaitable(shown):
            await shown

    async def _post(self, transport: Transport, url: str, **fields: str) -> dict[str, Any]:
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        sent = {name: value for name, value in fields.items() if value}
        if self._secret:
            pair = f"{quote(self._id, safe='')}:{quote(self._secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            sent["client_id"] = self._id
        body = urlencode(sent).encode()
        async with asyncio.timeout(30):
            response = await transport.send(TransportRequest("POST", url, headers, body))
            return _parse_response(await read_all(response, CARD), response.status, url)

    # -- stored tokens

    def _load(self) -> dict[str, TokenGrant]:
        if self._file is None or not self._file.is_file():
            return {}
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, TokenGrant])
        except msgspec.DecodeError:
            return {}  # they can be requested again

    def _save(self, key: str, grant: TokenGrant) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = self._file.with_suffix(f".{os.getpid()}")
        # Other processes may store their tokens in the same file.
        kept = {**self._load(), key: replace(grant, until=min(grant.until, 1e12))}
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        made.replace(self._file)


class Flight:
    """One request for a token with several waiters. It is canceled when the last of them gives
    up."""

    def __init__(self, errand: Coroutine[Any, Any, TokenGrant]) -> None:
        self._task = asyncio.create_task(errand)
        self._waiting = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._task.done() or not self._waiting

    async def result(self) -> TokenGrant:
        """Wait for the tokens."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._task.cancel()


_FLOWS: dict[str, Callable[[OAuth, AuthRequest, Endpoints], Awaitable[TokenGrant]]] = {
    "client": OAuth._by_client,
    "code": OAuth._by_code,
    "device": OAuth._by_device,
}


def _print_prompt(invitation: LoginPrompt) -> None:
    """Show the login URL at the terminal."""
    code = f" and enter {invitation.code}" if invitation.code else ""
    words = f"To log in, open {invitation.url}{code}"
    print(ascii(words)[1:-1], file=sys.stderr, flush=True)  # noqa: T201 - the prompt for a person
    screen = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
    if screen and private(invitation.url) and invitation.url.startswith("http"):
        with suppress(webbrowser.Error):
            webbrowser.open(invitation.url)


def _parse_response(body: bytes, status: int, url: str) -> dict[str, Any]:
    """Parse the response of an authorization server. Raises the error in it."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if status >= 500 or status == 429:
        raise Unreachable(f"{url} answered {status}")
    if not isinstance(document, dict):
        raise Unauthenticated(f"{url} answered with HTTP {status}, and not with an OAuth response")
    if status != 200 or "error" in document:
        raise denied(document, status)
    return document


def _resource_in(body: bytes) -> str:
    """Return the resource in the metadata; empty if there is none."""
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    named = document.get("resource") if isinstance(document, dict) else None
    return named if isinstance(named, str) and "#" not in named else ""
