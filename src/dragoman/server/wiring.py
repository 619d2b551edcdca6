"""Makes the parts of an application from its settings. Errors name the setting.

A module that needs an extra is imported only if a setting asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dragoman.bindings.agent_endpoint import Endpoint
from dragoman.bindings.card_interfaces import GRPC, check_bindings, check_versions, listed
from dragoman.model.errors import Unavailable
from dragoman.security.card_keys import CardKey
from dragoman.security.limits import Limits, Proxies
from dragoman.server.load_settings import Checks
from dragoman.server.settings import Settings, SettingsError, listen_address, table_secrets
from dragoman.stores import url_options
from dragoman.stores.store import Store
from dragoman.telemetry.logs import secret

if TYPE_CHECKING:
    from dragoman.bindings.grpc import Port
    from dragoman.security.schemes import AllOf, Auth, Authenticator, Scheme

Given: TypeAlias = "Auth | Mapping[str, Any] | Sequence[Scheme | AllOf | Mapping[str, Any]]"
"""Who may call: schemes, or tables as in the setting `auth`."""


def auth(given: Given) -> Auth:
    """Make the schemes of the setting `auth`, or of code, where each may also be a table. The
    secrets of tables are masked in logs."""
    from dragoman.security.from_config import build

    single = isinstance(given, Mapping | str) or not isinstance(given, Sequence)
    try:
        found = build((given,) if single else given)  # type: ignore[arg-type]
    except ValueError as error:
        text = str(error).removeprefix("[0]") if single else str(error)
        raise SettingsError(f"auth{text}") from None
    secret(*found.secrets, *table_secrets(given))
    return found.schemes


def _check_auth(tables: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if the tables are not valid schemes. The message starts with the
    position."""
    if tables:
        from dragoman.security.from_config import build
        from dragoman.security.schemes import Authenticator

        schemes = build(tables).schemes
        try:
            Authenticator(schemes)
        except ValueError as error:  # an error of all of them together
            raise ValueError(str(error).removeprefix("auth")) from None


def _check_proxies(networks: Sequence[str]) -> None:
    """Raise ValueError if one of them is not a network."""
    try:
        Proxies(networks)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("proxies")) from None


def _check_metrics(address: int | str | None) -> None:
    """Raise ValueError if it is neither a port nor an address."""
    if address is not None:
        try:
            listen_address(address)
        except ValueError as error:
            raise ValueError(f": {error}") from None


CHECKS: Checks = {
    "auth": _check_auth,
    "bindings": check_bindings,
    "versions": check_versions,
    "metrics": _check_metrics,
    "store": url_options.check,
    "trusted_proxies": _check_proxies,
}
"""Checks of settings beyond their types."""


def authenticator(auth: Auth, settings: Settings) -> Authenticator:
    """Make the authenticator. Raises SettingsError if a setting that it needs is missing."""
    from dragoman.security.schemes import Authenticator

    found = Authenticator(auth)
    if not (settings.url or settings.trusted_hosts):
        for scheme in found.tokens:
            if getattr(scheme, "dpop", False):
                raise SettingsError(
                    f"auth: {scheme.name!r} needs the setting url, or trusted_hosts: a DPoP proof"
                    " is for one URL, and a caller can name any host"
                )
    return found


def limits(settings: Settings) -> Limits | None:
    """Make the rate limits, if there are any."""
    if not (settings.rate or settings.rate_address or settings.trusted_proxies):
        return None
    return Limits(
        address=settings.rate_address,
        identity=settings.rate,
        burst=settings.rate_burst,
        proxies=settings.trusted_proxies,
    )


def keys(settings: Settings) -> list[CardKey]:
    """Load the keys that sign the cards."""
    found = []
    for file in settings.card_keys:
        try:
            found.append(CardKey.load(Path(file)))
        except OSError as error:
            raise SettingsError(f"card_keys: {file}: {error.strerror or error}") from None
        except ValueError as error:
            raise SettingsError(f"card_keys: {error}") from None
    return found


def check_card(settings: Settings) -> None:
    """Raise SettingsError if a card cannot list these settings."""
    for name in ("bindings", "versions"):
        try:
            CHECKS[name](getattr(settings, name))
        except ValueError as error:
            raise SettingsError(f"{name}{error}") from None


def check_mounted(settings: Settings, mounted: Collection[str]) -> None:
    """Raise ValueError if the setting `bindings` has a path that leads to one of these mounted
    applications, by their names below the agent."""
    for each in listed(settings.bindings):
        if each.path.strip("/").partition("/")[0] in mounted:
            raise ValueError(f"bindings: {each.path!r} is the path of a mounted application")


def check_grpc(settings: Settings, agents: int) -> None:
    """Raise ValueError if the gRPC settings contradict each other."""
    port = settings.grpc_port
    if port is None and any(each.binding == GRPC for each in listed(settings.bindings)):
        raise ValueError("bindings: GRPC needs grpc_port")
    if port and port + agents - 1 > 65535:
        raise ValueError(f"grpc_port: {port + agents - 1} is beyond 65535; each agent has a port")
    if port is None:
        return
    for name in ("key", "ca"):
        if getattr(settings, name) and not settings.cert:
            raise ValueError(f"{name}: needs cert; without it there is no TLS")
    if settings.key_password:
        raise ValueError("key_password: gRPC cannot use an encrypted key; set a key without one")


def check_serve_only(settings: Settings, store: Store) -> None:
    """Raise SettingsError if no process could run the turns of the accepted tasks."""
    if settings.serve_only and not store.shared:
        raise SettingsError(
            "serve_only: other processes run the turns, and they cannot reach the store "
            f"{settings.masked()['store']}; use --store postgresql://…, or leave --serve-only out"
        )


def ports(settings: Settings, endpoints: Iterable[Endpoint]) -> list[Port]:
    """Make a gRPC port for each agent, with consecutive numbers, because gRPC has no paths to
    distinguish them."""
    first = settings.grpc_port
    if first is None:
        return []
    try:
        from dragoman.bindings.grpc import Port
    except ImportError:
        raise Unavailable(
            "grpc_port: gRPC is not installed; run `pip install 'dragoman[grpc]'`"
        ) from None
    return [
        Port(endpoint, settings, first and first + index)
        for index, endpoint in enumerate(endpoints)
    ]
