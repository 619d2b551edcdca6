"""A real authorization server: Authlib's grants behind a small ASGI application.

Nothing in it waits for time to pass: its clock stands until a test moves it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from authlib.common.security import generate_token
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
    InvalidRequestError,
    OAuth2Payload,
    OAuth2Request,
)
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE
from joserfc import jwt
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dragoman.model.caller import Caller
from dragoman.model.caller import Request as Visit
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityScheme,
)
from tests.client.authorization_grants import (
    METHODS,
    S256,
    SCOPES,
    Again,
    ByCode,
    ByDevice,
    BySecret,
    Code,
    Device,
    Devices,
    Questions,
    Registered,
    Token,
)
from tests.harness.server import serving

SECRET = "s3:cret/%41+&"
"""Not to be put into a header as it is."""
DISCOVERY = "/.well-known/openid-configuration"
CLIENT, CODE, REFRESH, DEVICE = (
    "client_credentials",
    "authorization_code",
    "refresh_token",
    "device_code",
)


class Payload(OAuth2Payload):
    """The fields of a form, or of a query."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    @property
    def data(self) -> dict[str, Any]:
        return dict(self._fields)

    @property
    def datalist(self) -> dict[str, list[Any]]:
        return {name: self._fields.getlist(name) for name in self._fields}


class Asked(OAuth2Request):
    """A request as Authlib wants to see it."""

    def __init__(self, request: Request, fields: Any) -> None:
        super().__init__(request.method, str(request.url), headers=request.headers)
        self.payload = Payload(fields)
        repeated = [name for name, found in self.payload.datalist.items() if len(found) > 1]
        if repeated:
            raise InvalidRequestError(f"Repeated: {' '.join(repeated)}.")

    @property
    def args(self) -> dict[str, Any]:
        return self.payload.data

    @property
    def form(self) -> dict[str, Any]:
        return self.payload.data


@dataclass(eq=False)
class Authority(AuthorizationServer):
    """One person and four clients: `robot` and `site` have a secret, `app` has none; `agent` asks
    about tokens."""

    url: str = ""
    person: str | None = "ann"
    """Who sits at the browser; None says no."""
    lifetime: int = 3600
    """How long the next access tokens live, in seconds."""
    interval: int = 5
    """The pause between polls that devices are told."""
    distance: int = 0
    """The pause that they have to keep, if it is another one."""
    patience: int = 600
    """How long a device code lives."""
    document: dict[str, Any] = field(default_factory=dict)
    """What the discovery document says instead of the truth."""
    told: dict[str, Any] = field(default_factory=dict)
    """What is also told of tokens, to who asks about them or in themselves."""
    key: Any = None
    """What signs the next access tokens, which are JWT then."""
    now: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(scopes_supported=list(SCOPES))
        people = ["authorization_code", DEVICE_CODE_GRANT_TYPE, "refresh_token"]
        self.clients = {
            "robot": Registered("robot", SECRET, ["client_credentials"]),
            "site": Registered("site", SECRET, [*people, "client_credentials"]),
            "app": Registered("app", "", people),
            "agent": Registered("agent", SECRET, []),
        }
        self.codes: dict[str, Code] = {}
        self.devices: dict[str, Device] = {}
        self.tokens: list[Token] = []
        self.asked: list[str] = []
        """The grant types of all token requests, also of those that were refused."""
        self.forms: list[dict[str, Any]] = []
        """The token requests themselves."""
        self.other_forms: list[dict[str, Any]] = []
        """The requests for codes, of people and of devices."""
        self.refuses_resources = False
        """It knows no resource (RFC 8707) but its own."""
        self.questions = 0
        """How often it was asked about tokens."""
        self.open = asyncio.Event()
        """Token requests are answered while it is set."""
        self.open.set()
        self._came = asyncio.Condition()
        self.register_token_generator("default", self._generator())
        self.register_grant(ByCode, [S256(required=True)])
        for grant in (BySecret, ByDevice, Again):
            self.register_grant(grant)
        self.register_endpoint(Devices)
        self.register_endpoint(Questions)
        self.app = Starlette(
            routes=[
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/device", self._device, methods=["POST"]),
                Route("/introspect", self._introspect, methods=["POST"]),
                Route("/keys", self._keys),
                Route(DISCOVERY, self._discovery),
            ]
        )

    # -- for tests

    def identify(self, visit: Visit) -> Caller:
        """Who has such a token; Unauthenticated."""
        kind, _, value = visit.headers.get("authorization", "").partition(" ")
        token = next((t for t in self.tokens if t.access == value), None)
        if kind != "Bearer" or token is None or token.revoked or self.now >= token.until:
            raise Unauthenticated("no such token")
        return Caller(identity=token.user, scopes=frozenset(token.scope.split()))

    def revoke(self) -> None:
        """No access token from before is good any more, whatever was said of its lifetime."""
        for token in self.tokens:
            token.revoked = True

    def logout(self) -> None:
        """No refresh token from before is good any more either."""
        for token in self.tokens:
            self.forget(token)

    def forget(self, token: Token) -> None:
        """Everything that came of one login ends."""
        for other in self.tokens:
            if other.family == token.family:
                other.revoked = other.spent = True

    def device(self, user_code: str) -> Device:
        """The device that shows this code."""
        return next(found for found in self.devices.values() if found.user_code == user_code)

    async def came(self, count: int) -> None:
        """Wait for so many token requests."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) >= count)

    async def questioned(self, count: int) -> None:
        """Wait for so many questions about tokens."""
        async with self._came:
            await self._came.wait_for(lambda: self.questions >= count)

    def scheme(self, flow: str, **changed: Any) -> SecurityScheme:
        """How a card tells of one of the flows here: client, code, device or openid."""
        token = {"token_url": f"{self.url}/token", "scopes": SCOPES}
        match flow:
            case "client":
                flows = OAuthFlows(client_credentials=ClientCredentialsOAuthFlow(**token | changed))
            case "code":
                more = {"authorization_url": f"{self.url}/authorize", "pkce_required": True}
                flows = OAuthFlows(
                    authorization_code=AuthorizationCodeOAuthFlow(**token | more | changed)
                )
            case "device":
                more = {"device_authorization_url": f"{self.url}/device"}
                flows = OAuthFlows(device_code=DeviceCodeOAuthFlow(**token | more | changed))
            case _:
                found = {"open_id_connect_url": f"{self.url}{DISCOVERY}"} | changed
                return SecurityScheme(
                    open_id_connect_security_scheme=OpenIdConnectSecurityScheme(**found)
                )
        return SecurityScheme(oauth2_security_scheme=OAuth2SecurityScheme(flows=flows))

    # -- for Authlib

    def query_client(self, client_id: str) -> Registered | None:
        return self.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        before = request.refresh_token
        self.devices = {k: v for k, v in self.devices.items() if v is not request.credential}
        self.tokens.append(
            Token(
                access=token["access_token"],
                refresh=token.get("refresh_token", ""),
                client=request.client.id,
                user=request.user or request.client.id,
                scope=token.get("scope", ""),
                until=self.now + token.get("expires_in", float("inf")),
                family=before.family if before else token["access_token"],
            )
        )

    def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if isinstance(body, dict):
            return JSONResponse(body, status, dict(headers))
        return Response(body, status, dict(headers))

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def _generator(self) -> BearerTokenGenerator:
        def random(length: int) -> Any:
            return lambda **_: generate_token(length)

        def access(client: Registered, user: str | None, scope: str, **_: Any) -> str:
            if self.key is None:
                return generate_token(42)
            claims = {"iss": self.url, "sub": user or client.id, "scope": scope or ""}
            claims |= {"exp": int(time.time()) + self.lifetime, "jti": generate_token(8)}
            return jwt.encode({"alg": "ES256", "kid": self.key.kid}, claims | self.told, self.key)

        return BearerTokenGenerator(access, random(48), lambda *_: self.lifetime)

    # -- for HTTP

    async def _authorize(self, request: Request) -> Response:
        self.other_forms.append(dict(request.query_params))
        try:
            asked = Asked(request, request.query_params)
            grant = self.get_consent_grant(asked, end_user=self.person)
        except OAuth2Error as error:
            return self.handle_response(*error())
        return self.create_authorization_response(asked, grant_user=self.person, grant=grant)

    async def _token(self, request: Request) -> Response:
        form = await _form(request)
        async with self._came:
            self.asked.append(str(form.get("grant_type")).rpartition(":")[2])
            self.forms.append(dict(form))
            self._came.notify_all()
        await self.open.wait()
        if self.refuses_resources and "resource" in form:
            return JSONResponse({"error": "invalid_target"}, 400)
        return self._answer(request, form, self.create_token_response)

    async def _device(self, request: Request) -> Response:
        def answer(asked: Asked) -> Response:
            return self.create_endpoint_response(Devices.ENDPOINT_NAME, asked)

        form = await _form(request)
        self.other_forms.append(dict(form))
        return self._answer(request, form, answer)

    async def _introspect(self, request: Request) -> Response:
        form = await _form(request)
        async with self._came:
            self.questions += 1
            self._came.notify_all()
        await self.open.wait()

        def answer(asked: Asked) -> Response:
            return self.create_endpoint_response(Questions.ENDPOINT_NAME, asked)

        return self._answer(request, form, answer)

    async def _keys(self, request: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    def _answer(self, request: Request, form: QueryParams, answer: Any) -> Response:
        try:
            return answer(Asked(request, form))
        except OAuth2Error as error:
            return self.handle_response(*error())

    async def _discovery(self, request: Request) -> Response:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "jwks_uri": f"{self.url}/keys",
            "scopes_supported": list(SCOPES),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "grant_types_supported": ["client_credentials", *self.clients["app"].grant_types],
            "token_endpoint_auth_methods_supported": METHODS,
            "code_challenge_methods_supported": ["S256"],
        }
        return JSONResponse(document | self.document)


async def _form(request: Request) -> QueryParams:
    kind = request.headers.get("content-type", "").partition(";")[0]
    found = await request.body() if kind == "application/x-www-form-urlencoded" else b""
    return QueryParams(found.decode())


@contextlib.asynccontextmanager
async def presiding() -> AsyncIterator[Authority]:
    """An authorization server, up and running until the block ends."""
    authority = Authority()
    async with serving(authority.app) as url:
        authority.url = url
        yield authority
