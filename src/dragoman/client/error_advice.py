"""Adds to an error which task it concerns and what the caller can do."""

from __future__ import annotations

from dragoman.client.transport import Broken, Silent, Unreachable, origin
from dragoman.model.errors import A2AError, TaskNotFound, Unauthenticated
from dragoman.model.types import AgentCard, AgentInterface, SecurityScheme


def explain(
    error: BaseException,
    *,
    card: AgentCard,
    found: str,
    called: AgentInterface,
    known: bool,
    about: str = "",
) -> None:
    """Add details to the error of a call. `found` is the card's URL, empty if the caller passed a
    card; `known` is whether credentials were sent; `about` is the task of the request. A second
    call adds nothing."""
    if isinstance(error, TaskNotFound):
        if about and about not in error.message:
            plain = error.message.rstrip(".") == TaskNotFound.text
            _reword(error, f"{TaskNotFound.text}: {about}" if plain else f"{error} (task {about})")
    elif type(error) is Unauthenticated:
        ways = advice(card)
        if ways and ways not in error.message:
            # Without credentials, the agent's own message adds nothing.
            _reword(error, f"{error.message}; {ways}" if known else f"T{ways[1:]}")
    elif isinstance(error, Unreachable) and not isinstance(error, Broken | Silent):
        words = _named(found, called)
        if words and words not in str(error):
            error.args = (f"{error}; {words}",)


def _reword(error: A2AError, message: str) -> None:
    error.message = message
    error.args = (message,)


def _named(found: str, called: AgentInterface) -> str:
    """Say that the card names the address that was called, if it differs from the card's own."""
    if not found or origin(found) == origin(called.url):
        return ""
    setting = "bindings" if called.protocol_binding.upper() == "GRPC" else "url"
    return (
        f"the card at {found} contains this address; if it is wrong, correct it on the "
        f"server (in dragoman: the setting `{setting}`)"
    )


def advice(card: AgentCard) -> str:
    """Say which credentials an agent requires, with the options that set them; empty if it requires
    none or only unknown ones."""
    needs = [list(requirement.schemes) for requirement in card.security_requirements]
    needs = needs or [[name] for name in card.security_schemes]
    ways = [
        [_option(card.security_schemes[name]) for name in names]
        for names in needs
        if names and all(name in card.security_schemes for name in names)
    ]
    ways = [way for way in ways if all(command for command, _ in way)]
    if not ways:
        return ""
    commands = ", or ".join(" and ".join(command for command, _ in way) for way in ways)
    given = [python for _, python in ways[0]]
    python = given[0] if len(given) == 1 else f"[{', '.join(given)}]"
    return f"the agent requires {commands}; in Python auth={python}"


def _option(scheme: SecurityScheme) -> tuple[str, str]:
    """Return what a scheme requires with the command's option for it, and the Python argument; both
    empty if the scheme is unknown."""
    if (key := scheme.api_key_security_scheme) is not None:
        return f"an API key: --api-key KEY ({key.location} {key.name})", "StaticToken(KEY)"
    if (http := scheme.http_auth_security_scheme) is not None:
        if http.scheme.lower() == "basic":
            return "a name and a password: --user NAME:PASSWORD", "BasicAuth(NAME, PASSWORD)"
        if http.scheme.lower() == "bearer":
            return "a bearer token: --bearer TOKEN", "StaticToken(TOKEN)"
        return f"HTTP {http.scheme}: --api-key SECRET", "StaticToken(SECRET)"
    if scheme.oauth2_security_scheme or scheme.open_id_connect_security_scheme:
        return "an OAuth login: --client-id ID, or --bearer TOKEN", "OAuth(ID)"
    if scheme.mtls_security_scheme is not None:
        return "a client certificate: --cert FILE", "ClientCertificate(FILE)"
    return "", ""
