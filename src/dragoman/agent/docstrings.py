"""What the docstring of a handler says of the skill and of its parameters."""

from __future__ import annotations

import re

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*")
_ENTRY = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_SPHINX = re.compile(r":(?:param|parameter|arg)(?:\s+[^:\s]+)?\s+(\w+):\s*(.*)")


def docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description of the skill, and that of each parameter in an `Args:` section or in `:param
    name:` lines."""
    kept: list[str] = []
    about: dict[str, str] = {}
    section = current = ""
    for line in text.splitlines():
        stripped = line.strip()
        if match := _SPHINX.fullmatch(stripped):
            current = match[1]
            about[current] = match[2]
            section = ":"
        elif stripped.startswith((":return", ":raise", ":rtype", ":type", ":yield")):
            section, current = ":", ""
        elif match := _SECTION.fullmatch(line):
            section, current = match[1], ""
        elif section and line[:1].isspace():
            if section[0] in "AP" and (entry := _ENTRY.fullmatch(stripped)):
                current = entry[1].lstrip("*")
                about[current] = entry[2]
            elif current and stripped:
                about[current] = f"{about[current]} {stripped}".strip()
        elif section and not stripped:
            current = ""
        else:
            section = ""
            kept.append(line)
    return "\n".join(kept).strip(), about
