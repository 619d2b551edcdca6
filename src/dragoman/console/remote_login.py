"""The credentials that a person has typed in the inspector, and the log-in that is going on.

They stay in this process. The client decides where they are sent: `dragoman.client.credentials`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from dragoman import A2AError
from dragoman.client import BasicAuth, LoginPrompt, OAuth, StaticToken, TokenProvider
from dragoman.console import pages
from dragoman.console.access import local, origin_of
from dragoman.console.http import ConsoleError, Request, Response
from dragoman.console.shapes import PromptView, SchemeView

PATH = "/callback"
"""Where the browser comes back to from an authorization server: the same path as for the other
commands, so that a client has to be registered there once."""
PATIENCE = 300.0
"""Seconds that a person may take to log in."""
REFUSED = (401, 403)
"""The statuses of HTTP that say so, over each binding."""


class RemoteLogin:
    """The log-in at the agent of the inspector."""

    def __init__(self) -> None:
        self.auth: dict[str, TokenProvider] = {}
        """The credentials by the card's names of the schemes."""
        self.state = PromptView()
        self._codes: dict[str, asyncio.Future[str]] = {}
        """The log-ins that wait for a browser, by their state."""
        self._trying: asyncio.Task[None] | None = None

    def take(
        self, request: Request, given: Mapping[str, str], schemes: Sequence[SchemeView]
    ) -> None:
        """Use these credentials from now on. Raises ConsoleError."""
        scheme = next((each for each in schemes if each.name == given.get("scheme")), None)
        if scheme is None:
            raise ConsoleError("the card has no such scheme")
        if given.get("forget"):
            self.auth.pop(scheme.name, None)
            return
        secret = given.get("secret", "").strip()
        if scheme.kind == "certificate":
            raise ConsoleError("start the inspector with --cert FILE to show a certificate")
        if scheme.kind == "basic":
            self.auth[scheme.name] = BasicAuth(given.get("user", ""), given.get("secret", ""))
        elif scheme.kind == "oauth" and given.get("client"):
            self.auth[scheme.name] = self._oauth(request, given, scheme)
        elif token := given.get("token", "").strip() or secret:
            if not token.isprintable():
                raise ConsoleError("the credentials have characters that cannot be sent")
            self.auth[scheme.name] = StaticToken(token)
        else:
            raise ConsoleError("the credentials are not complete")

    def _oauth(self, request: Request, given: Mapping[str, str], scheme: SchemeView) -> OAuth:
        if scheme.foreign and given.get("issuer") != scheme.server:
            raise ConsoleError(f"confirm that {scheme.server} is the server to log in at")
        flow = given.get("flow", "")
        if flow not in ("", *scheme.flows):
            raise ConsoleError(f"flow: the card does not offer {flow[:40]!r}")
        url = f"{origin_of(request)}{PATH}"
        return OAuth(
            given["client"].strip(),
            given.get("secret", "").strip(),
            issuer=given.get("issuer", ""),
            flow=flow,  # type: ignore[arg-type] # one of those above
            tell=self._tell,
            redirect=lambda state: LoginRedirect(self._codes, state, url),
        )

    def _tell(self, prompt: LoginPrompt) -> None:
        self.state = PromptView(state="waiting", url=prompt.url, code=prompt.code)

    def begin(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask the agent for something with the new credentials, to see whether it accepts them."""
        self.state = PromptView(state="trying")
        self._trying = asyncio.create_task(self._try(ask))

    async def _try(self, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await ask()
        except (A2AError, OSError, ValueError, ModuleNotFoundError) as error:
            if not isinstance(error, A2AError) or error.http in REFUSED:
                text = str(error) or type(error).__name__
                self.state = PromptView(state="failed", error=text)
                return
            # any other answer means that the agent has accepted the caller
        self.state = PromptView(state="done")

    async def stop(self) -> None:
        """End a log-in that is going on."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
            self._trying = None
        self.state = PromptView()

    def come_back(self, request: Request) -> Response | None:
        """Answer a browser that comes back from an authorization server; None if it does not."""
        if request.path != PATH or request.method != "GET" or not local(request):
            return None
        waiting = self._codes.get(request.one("state"))
        if waiting is None or waiting.done():
            return pages.told("This request does not belong to the log-in that is going on.", 404)
        if code := request.one("code"):
            waiting.set_result(code)
            return pages.told("Done. You can close this window and go back to the inspector.")
        why = request.one("error_description") or request.one("error") or "it gave no code"
        waiting.set_exception(PermissionError(f"the authorization server refused: {why[:500]}"))
        return pages.told("The authorization server refused. Go back to the inspector.")


class LoginRedirect:
    """See `dragoman.client.Redirect`: the console itself receives the browser."""

    def __init__(self, codes: dict[str, asyncio.Future[str]], state: str, url: str) -> None:
        self._codes, self._state, self.url = codes, state, url

    async def __aenter__(self) -> LoginRedirect:
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._codes[self._state] = self._code
        return self

    async def __aexit__(self, *_: object) -> None:
        self._codes.pop(self._state, None)
        self._code.cancel()

    async def code(self) -> str:
        """Wait for the code."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._code
        except TimeoutError:
            raise PermissionError(f"nobody has logged in within {PATIENCE:g} s") from None
