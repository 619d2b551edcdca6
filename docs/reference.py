"""Writes docs/reference.md from public names and docstrings, and the tables of docs/settings.md
from the declarations of settings. Run `python docs/reference.py`."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

PACKAGES = {
    "dragoman": "Write agents and serve them.",
    "dragoman.client": "Call agents.",
    "dragoman.client.sync": "Call agents from code that does not await.",
    "dragoman.admin": "Read a store as an operator.",
    "dragoman.catalog": "Read and write catalogs of agents.",
    "dragoman.registry": "Keep a registry of agents, and ask it.",
    "dragoman.payments": "Be paid for skills, and pay for those of others.",
    "dragoman.security": "Identify callers.",
    "dragoman.prompt_safety": "Show text of other agents to a model.",
    "dragoman.orchestrator": "Have a team of agents do the work.",
    "dragoman.mcp": "Use agents as tools of MCP, and MCP servers as agents.",
    "dragoman.testing": "Test agents and clients.",
    "dragoman.webhooks.receiver": "Receive webhooks of any agent.",
    "dragoman.bridges.remote": "Use remote agents as tools in any framework.",
    "dragoman.bridges.bridge": "Serve agents of a framework of your own.",
    "dragoman.model.errors": "The errors of A2A.",
}
PAGE = Path(__file__).with_name("reference.md")
SETTINGS = Path(__file__).with_name("settings.md")
BEGIN, END = "<!-- the settings, as they are declared -->", "<!-- end -->"
WIDTH = 88
ELSEWHERE = {"Settings"}
"""Classes whose fields are described on another page."""
HEAD = """\
# API reference

`python docs/reference.py` writes this page from the docstrings. The names on this page are public.
Other names may change without notice. [settings.md](settings.md) lists the settings of `App`, and
[cli.md](cli.md) lists the commands.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """The whole page."""
    out = [HEAD]
    for package, purpose in PACKAGES.items():
        module = importlib.import_module(package)
        names = sorted((n for n in module.__all__ if not n.startswith("__")), key=str.lower)
        links = ", ".join(f"[`{name}`](#{anchor(package, name)})" for name in names)
        out.append(f"## {package}\n\n{purpose}\n\n{links}\n")
        out += (entry(package, name, getattr(module, name)) for name in names)
    return "\n".join(out)


def anchor(package: str, name: str) -> str:
    """Where the entry of a name is. Two packages may have the same name."""
    return f"{package}.{name}".lower().replace(".", "-")


def entry(package: str, name: str, value: Any) -> str:
    """What the page says of one name."""
    out = [f'<a id="{anchor(package, name)}"></a>', "", f"### {package}.{name}", ""]
    found = definition(value)
    if isinstance(found, ast.ClassDef):
        out += class_lines(value, found)
    elif found is not None:
        out += [block(*declaration(found, name)), "", doc(found), ""]
    else:
        out += [block(f"{name} = {value!r}"), ""]
    return "\n".join(out)


def class_lines(value: type, node: ast.ClassDef) -> Iterator[str]:
    """What a class is, how it is made, what it has."""
    kind = "exception" if issubclass(value, BaseException) else "class"
    made = next(
        (one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None
    )
    if made is None:
        bases = ", ".join(map(ast.unparse, node.bases))
        yield block(f"{kind} {node.name}" + (f"({bases})" if bases else ""))
    else:
        yield block(*declaration(made, f"{kind} {node.name}", bound=True))
    yield f"\n{doc(node)}\n"
    listed = [] if value.__name__ in ELSEWHERE else list(members(value))
    yield from (*listed, "") if listed else ()


def members(value: type) -> Iterator[str]:
    """The public members of a class, with those of base classes that are not public themselves."""
    seen: set[str] = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("dragoman"):
            continue
        if owner is not value and owner.__name__ in public():
            continue
        node = definition(owner)
        if isinstance(node, ast.ClassDef):
            for name, line in class_members(node):
                if name not in seen:
                    seen.add(name)
                    yield line


def class_members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The fields and the methods, in the order of the source."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, Function):
            if item.name == "__init__":
                yield from attributes(item)
            elif not item.name.startswith("_") and not has(item, "overload", "setter"):
                yield item.name, bullet(method(item), doc(item))
        elif isinstance(item, ast.AnnAssign | ast.Assign):
            target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            if isinstance(target, ast.Name) and not target.id.startswith("_"):
                yield target.id, bullet(ast.unparse(item), text_of(after))


def attributes(made: Function) -> Iterator[tuple[str, str]]:
    """The attributes that a constructor sets and describes."""
    for item, after in pairwise(made.body):
        if isinstance(item, ast.AnnAssign | ast.Assign) and (text := text_of(after)):
            target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                kind = (
                    f": {ast.unparse(item.annotation)}" if isinstance(item, ast.AnnAssign) else ""
                )
                yield target.attr, bullet(target.attr + kind, text)


def method(node: Function) -> str:
    """How a method or a property is used."""
    if has(node, "property", "cached_property"):
        return node.name + (f": {ast.unparse(node.returns)}" if node.returns else "")
    head, inside, tail = declaration(node, node.name, bound=not has(node, "staticmethod"))
    return f"{head}({', '.join(inside)}){tail}"


def declaration(node: Function, name: str, *, bound: bool = False) -> tuple[str, list[str], str]:
    """The first line of a function in three pieces: the text before the parameters, the parameters
    without `self` or `cls`, and the text after them."""
    head = ("async " if isinstance(node, ast.AsyncFunctionDef) else "") + name
    given = node.returns if node.name != "__init__" else None
    if has(node, "asynccontextmanager") and isinstance(given, ast.Subscript):
        head, given = f"async with {name}", given.slice
    tail = f" -> {ast.unparse(given)}" if given is not None else ""
    return head, list(parameters(node.args))[bound:], tail


def parameters(args: ast.arguments) -> Iterator[str]:
    """The parameters, each as it is written."""
    placed = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(placed) - len(args.defaults))
    for one, default in zip(placed, [*missing, *args.defaults], strict=True):
        yield parameter(one, default)
    if args.vararg:
        yield "*" + parameter(args.vararg, None)
    elif args.kwonlyargs:
        yield "*"
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield parameter(one, default)
    if args.kwarg:
        yield "**" + parameter(args.kwarg, None)


def parameter(arg: ast.arg, default: ast.expr | None) -> str:
    """One parameter."""
    shown = arg.arg + (f": {ast.unparse(arg.annotation)}" if arg.annotation else "")
    if default is not None:
        shown += f"{' = ' if arg.annotation else '='}{ast.unparse(default)}"
    return shown


def has(node: Function, *decorators: str) -> bool:
    """Whether it is decorated with one of these."""
    return any(ast.unparse(one).rpartition(".")[2] in decorators for one in node.decorator_list)


def doc(node: ast.AST) -> str:
    """Its docstring."""
    assert isinstance(node, Function | ast.ClassDef)
    return inspect.cleandoc(ast.get_docstring(node) or "")


def text_of(node: ast.AST | None) -> str:
    """The text below a field, which describes it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""


def bullet(code: str, text: str) -> str:
    """One member."""
    words = " ".join(text.split())
    return f"- `{code}`" + (f"<br>{words}" if words else "")


def block(head: str, inside: list[str] | None = None, tail: str = "") -> str:
    """Code that is shown, not run; a long one has a line for each parameter."""
    code = head if inside is None else f"{head}({', '.join(inside)}){tail}"
    if inside and len(code) > WIDTH:
        code = f"{head}(\n" + "".join(f"    {one},\n" for one in inside) + f"){tail}"
    return f"```\n{code}\n```"


@cache
def public() -> frozenset[str]:
    """All names that have an entry."""
    return frozenset(n for package in PACKAGES for n in importlib.import_module(package).__all__)


def definition(value: Any) -> Function | ast.ClassDef | None:
    """Where a class or function is written."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return None
    function = inspect.unwrap(value)
    tree = parsed(inspect.getsourcefile(function) or "")
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and node.name == value.__name__:
            return node
    return None


@cache
def parsed(file: str) -> ast.Module:
    """The source of a file."""
    return ast.parse(Path(file).read_text())


def settings() -> str:
    """docs/settings.md with tables of the settings, and of the options of stores, as they are
    declared."""
    from dragoman.server.settings import DECLARED, GROUPS, default_text, meaning
    from dragoman.stores.url_options import OPTIONS

    lines = []
    for name, declared in DECLARED.items():
        if name in GROUPS:
            lines += [
                "",
                f"### {GROUPS[name]}",
                "",
                "| setting | default | meaning |",
                "|---|---|---|",
            ]
        default = default_text(name) if declared.unset else f"`{default_text(name)}`"
        lines.append(f"| `{name}` | {default} | {meaning(name)} |")
    lines += ["", "### Options of a store", "", "| store | option | default | meaning |"]
    lines += ["|---|---|---|---|"]
    for scheme, options in OPTIONS.items():
        if scheme == "postgres":  # short for postgresql
            continue
        for name, option in options.items():
            text = f"`{option.text(option.default)}` | {option.declared.help}"
            lines.append(f"| `{scheme}:` | `{name}` | {text} |")
    before, rest = SETTINGS.read_text().split(BEGIN)
    _, after = rest.split(END)
    return "\n".join([f"{before}{BEGIN}", *lines, "", f"{END}{after}"])


if __name__ == "__main__":
    PAGE.write_text(page())
    SETTINGS.write_text(settings())
