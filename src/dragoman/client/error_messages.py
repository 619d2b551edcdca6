"""What the words of an error leave out: which task was asked for, and what the caller can do."""

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
    """Add it to the error of a call. `found` is where the card was, and empty if it was given as an
    object; `known` is whether a credential was sent, and `about` the task that was asked for. Done
    twice, it adds nothing."""
    if isinstance(error, TaskNotFound):
        if about and about not in error.message:
            plain = error.message.rstrip(".") == TaskNotFound.text
            _reword(error, f"{TaskNotFound.text}: {about}" if plain else f"{error} (task {about})")
    elif type(error) is Unauthenticated:
        ways = advice(card)
        if ways and ways not in error.message:
            # what an agent says to somebody who sent nothing adds nothing
            _reword(error, f"{error.message}; {ways}" if known else f"T{ways[1:]}")
    elif isinstance(error, Unreachable) and not isinstance(error, Broken | Silent):
        words = _named(found, called)
        if words and words not in str(error):
            error.args = (f"{error}; {words}",)


def _reword(error: A2AError, message: str) -> None:
    error.message = message
    error.args = (message,)


def _named(found: str, called: AgentInterface) -> str:
    """That the card names the address that was called, where it is another than the card's own."""
    if not found or origin(found) == origin(called.url):
        return ""
    setting = "grpc_url" if called.protocol_binding.upper() == "GRPC" else "url"
    return (
        f"the card at {found} contains this address; if it is wrong, correct it on the "
        f"server (in dragoman: the setting `{setting}`)"
    )


def advice(card: AgentCard) -> str:
    """What an agent wants of its callers, with the options that give it; empty if it wants
    nothing, or says nothing that we know."""
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
    """What a scheme wants and the option of the command for it, and what Python takes; both empty
    if it is none that we know."""
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
