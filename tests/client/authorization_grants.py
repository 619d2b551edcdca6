"""What an authorization server keeps, and on what grounds it gives a token: Authlib's grants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from authlib.oauth2.rfc6749 import (
    AuthorizationCodeMixin,
    ClientMixin,
    InvalidRequestError,
    OAuth2Request,
    TokenMixin,
    grants,
)
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc7662 import IntrospectionEndpoint
from authlib.oauth2.rfc8628 import (
    DeviceAuthorizationEndpoint,
    DeviceCodeGrant,
    DeviceCredentialMixin,
)

if TYPE_CHECKING:
    from tests.client.authorization_server import Authority

SCOPES = {"talk": "Talk to the agent.", "listen": "Hear it.", "openid": "", "offline_access": ""}
METHODS = ["client_secret_basic", "client_secret_post", "none"]


# ---- what it keeps ----------------------------------------------------------------------------


@dataclass
class Registered(ClientMixin):
    """A client that is known here; one without a secret is public."""

    id: str
    secret: str
    grant_types: Iterable[str]

    def get_client_id(self) -> str:
        return self.id

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join(name for name in (scope or "").split() if name in SCOPES)

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        """Any port of the loopback address, as RFC 8252 has it."""
        parts = urlsplit(redirect_uri)
        if parts.path not in ("/callback", "/console/login/code"):
            return False
        return (parts.scheme, parts.hostname) == ("http", "127.0.0.1")

    def check_client_secret(self, client_secret: str) -> bool:
        return bool(self.secret) and client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return (method == "none") == (not self.secret)

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grant_types


@dataclass
class Code(AuthorizationCodeMixin):
    """What a person has agreed to in the browser, until it is fetched."""

    value: str
    client: str
    user: str
    redirect_uri: str
    scope: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Device(DeviceCredentialMixin):
    """A device that waits for a person."""

    client: str
    scope: str
    user_code: str
    until: float
    interval: float
    authority: Authority
    polled: float
    verdict: bool | None = None

    def get_client_id(self) -> str:
        return self.client

    def get_scope(self) -> str:
        return self.scope

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return self.authority.now >= self.until


@dataclass
class Token(TokenMixin):
    """An access token, and the refresh token that came with it."""

    access: str
    refresh: str
    client: str
    user: str
    scope: str
    until: float
    family: str
    revoked: bool = False
    spent: bool = False
    """Its refresh token has been used."""

    def check_client(self, client: Registered) -> bool:
        return client.id == self.client

    def get_scope(self) -> str:
        return self.scope


# ---- the grants -------------------------------------------------------------------------------


class S256(CodeChallenge):
    """Nobody does without it."""

    SUPPORTED_CODE_CHALLENGE_METHOD = ["S256"]  # noqa: RUF012

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        if grant.request.payload.data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("S256 is required.")
        super().validate_code_challenge(grant, redirect_uri)


class ByCode(grants.AuthorizationCodeGrant):
    """By way of a person's browser."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    server: Authority

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        asked = request.payload.data
        self.server.codes[code] = Code(
            value=code,
            client=request.client.id,
            user=request.user,
            redirect_uri=asked["redirect_uri"],
            scope=request.scope,
            code_challenge=asked["code_challenge"],
            code_challenge_method=asked["code_challenge_method"],
        )

    def query_authorization_code(self, code: str, client: Registered) -> Code | None:
        found = self.server.codes.get(code)
        return found if found and found.client == client.id else None

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.codes[authorization_code.value]

    def authenticate_user(self, authorization_code: Code) -> str:
        return authorization_code.user


class Questions(IntrospectionEndpoint):
    """What of a token is told to who has a secret."""

    CLIENT_AUTH_METHODS = ["client_secret_basic"]  # noqa: RUF012
    server: Authority

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        found = next((t for t in self.server.tokens if t.access == token_string), None)
        good = found and not found.revoked and self.server.now < found.until
        return found if good else None

    def check_permission(self, token: Token, client: Registered, request: OAuth2Request) -> bool:
        return client.id == "agent"

    def create_introspection_payload(self, token: Token | None) -> dict[str, Any]:
        if token is None:
            return {"active": False}
        told = {"sub": token.user, "client_id": token.client, "scope": token.scope}
        return {"active": True, "iss": self.server.url, **told, **self.server.told}


class BySecret(grants.ClientCredentialsGrant):
    """Between machines."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS[:2]


class ByDevice(DeviceCodeGrant):
    """By way of a person at another device."""

    server: Authority

    def query_device_credential(self, device_code: str) -> Device | None:
        return self.server.devices.get(device_code)

    def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
        verdict = self.server.device(user_code).verdict
        return None if verdict is None else (self.server.person or "", verdict)

    def should_slow_down(self, credential: Device) -> bool:
        """Whether it came too early; then it has to keep a longer distance from now on."""
        early = self.server.now - credential.polled < credential.interval
        credential.polled = self.server.now
        if early:
            credential.interval += 5
        return early


class Again(grants.RefreshTokenGrant):
    """By refresh token, each of which works once. Who brings one twice loses everything."""

    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True
    server: Authority

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        found = next((t for t in self.server.tokens if t.refresh == refresh_token), None)
        if found is not None and found.spent:
            self.server.forget(found)
        return None if found is None or found.spent else found

    def authenticate_user(self, refresh_token: Token) -> str:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: Token) -> None:
        refresh_token.spent = True


class Devices(DeviceAuthorizationEndpoint):
    """Where a device asks for its codes."""

    server: Authority

    def create_endpoint_response(self, request: OAuth2Request) -> tuple[int, Any, Any]:
        self.INTERVAL, self.EXPIRES_IN = self.server.interval, self.server.patience
        return super().create_endpoint_response(request)

    def get_verification_uri(self) -> str:
        return f"{self.server.url}/activate"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        self.server.devices[data["device_code"]] = Device(
            client=client_id,
            scope=scope,
            user_code=data["user_code"],
            until=self.server.now + data["expires_in"],
            interval=self.server.distance or data["interval"],
            authority=self.server,
            polled=self.server.now,
        )
