"""Where settings come from (arguments, `DRAGOMAN_*` variables and a TOML file, in that order), and
the check of each value."""

from __future__ import annotations

import json
import logging
import os
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman.server.settings import (
    DECLARED,
    TABLES,
    Settings,
    SettingsError,
    convert,
    types,
)

PREFIX = "DRAGOMAN_"
FILE = "dragoman.toml"
Checks = Mapping[str, Callable[[Any], None]]
"""Checks of settings beyond their types. Each raises ValueError, whose text begins with the
position of the mistake, such as `[0].name: …`."""
INSTEAD = {
    "workers": "one server is one process: to use more of them, start `dragoman serve` several "
    "times with the same --store postgresql://… behind a load balancer",
}
"""What to do where other servers have a setting of this name."""


def load(arguments: Mapping[str, Any] | None = None, **more: Any) -> Settings:
    """The settings in force; the arguments are those of `resolve`."""
    return resolve(arguments, **more)[0]


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    origin: str = "code",
    defaults: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    checks: Checks | None = None,
    warn: Callable[[str], None] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and for each its source: default, a file, a variable, command line,
    or `origin` for `arguments`. `texts` are arguments from a command line, not yet of their type.
    The file is the one given, `DRAGOMAN_CONFIG`, or `dragoman.toml` if it exists. `warn` gets
    what may be a mistake; by default it is logged. SettingsError has all that is wrong."""
    warn = warn or logging.getLogger("dragoman").warning
    environ = _without_service_links(os.environ if environ is None else environ)
    values: dict[str, Any] = dict(defaults or {})
    sources = dict.fromkeys(Settings.__struct_fields__, "default")
    errors: list[str] = []

    def take(name: str, value: Any, where: str, source: str, *, strict: bool) -> None:
        try:
            values[name] = _one(name, value, where, checks or {}, strict=strict)
            sources[name] = source
        except SettingsError as error:
            errors.extend(error.errors)

    named = file or environ.get(PREFIX + "CONFIG")
    path = Path(named or FILE)
    if named or path.is_file():
        try:
            for name, value in _read(path).items():
                take(name, value, f"{path}: {name}", str(path), strict=True)
        except SettingsError as error:
            errors.extend(error.errors)
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable in (name, PREFIX + "CONFIG") or variable.startswith(PREFIX + "_"):
            continue
        if variable.startswith(PREFIX) and name not in DECLARED:
            warn(f"{variable}: {_unknown(name, lambda known: PREFIX + known.upper())}")
        elif variable == PREFIX + name.upper():
            take(name, text, variable, variable, strict=False)
    for name, value in (arguments or {}).items():
        if value is not None:
            take(name, value, name, origin, strict=True)
    for name, text in (texts or {}).items():
        take(name, text, name, "command line", strict=False)
    if errors:
        raise SettingsError(*errors)
    return Settings(**values), sources


def _unknown(name: str, spell: Callable[[str], str] = str) -> str:
    """The error for a name that no setting has, with the name that was probably meant."""
    from difflib import get_close_matches  # only where something is wrong

    close = get_close_matches(name.lower().replace("-", "_"), DECLARED, 1)
    hint = f"did you mean {spell(close[0])}?" if close else "`dragoman config` lists all settings"
    return f"there is no such setting; {hint}"


def _without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that Kubernetes sets in each pod for a Service whose name begins
    with dragoman, such as `DRAGOMAN_PORT=tcp://10.0.0.7:80`: nobody chose them."""
    found = dict(environ)
    for name in environ:
        service = name.removesuffix("_SERVICE_HOST")
        if service == name or not name.startswith(PREFIX):
            continue
        for link in environ:
            if link.startswith((f"{service}_SERVICE_", f"{service}_PORT_")) or (
                # a plain number is a setting; it comes before the link that Kubernetes sets
                link == f"{service}_PORT" and "://" in environ[link]
            ):
                found.pop(link, None)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _one(name: str, value: Any, where: str, checks: Checks, *, strict: bool) -> Any:
    kinds = types()
    if name not in kinds:
        instead = INSTEAD.get(name)
        why = f"there is no such setting; {instead}" if instead else _unknown(name)
        raise SettingsError(f"{where}: {why}")
    if isinstance(value, str) and name in TABLES:
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise SettingsError(f"{where}: is not JSON: {error}") from None
    if isinstance(value, str) and typing.get_origin(kinds[name]) is tuple:
        value, strict = [item.strip() for item in value.split(",") if item.strip()], False
    if isinstance(value, Mapping) and name in TABLES:
        toml = where.endswith(f": {name}")
        way = f"write [[{name}]] with two brackets" if toml else "give a list, even for one table"
        raise SettingsError(f"{where}: is one table, not a list of tables; {way}")
    try:
        found = convert(value, kinds[name], DECLARED[name], strict=strict)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None
    if name in checks:
        try:
            checks[name](found)
        except ValueError as error:
            raise SettingsError(f"{where}{error}") from None
    return found
