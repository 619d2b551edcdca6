"""One form for what all SDKs tell, whichever dialect it is in."""

from __future__ import annotations

from typing import Any

Told = dict[str, Any]


def plain(told: Told) -> Told:
    """A task, message or event in one form, from the JSON of any dialect."""
    if not {"status", "artifact", "parts"} & told.keys():  # wrapped
        (told,) = told.values()
    if "artifact" in told:
        return {
            "kind": "artifact",
            "append": bool(told.get("append") or told["artifact"].get("append")),
            "artifact": _artifact(told["artifact"]),
        }
    if "status" not in told:
        return {"kind": "message", **_message(told)}
    status = told["status"]
    said = status.get("message") or status.get("update")
    found: Told = {
        "state": state(status["state"]),
        "said": text(_message(said)["parts"]) if said else "",
        "context": told.get("contextId") or told.get("sessionId") or "",
    }
    if "final" in told or "taskId" in told:
        return {"kind": "status", "final": told.get("final"), **found}
    return {
        "kind": "task",
        "id": told["id"],
        "artifacts": [_artifact(one) for one in told.get("artifacts") or []],
        "history": [_message(one) for one in told.get("history") or []],
        **found,
    }


def state(name: str) -> str:
    """The name of a state, as 0.3 writes it."""
    found = name.removeprefix("TASK_STATE_").lower().replace("_", "-")
    return "canceled" if found == "cancelled" else found


def text(parts: list[Told]) -> str:
    """The texts of parts in a row."""
    return "".join(part.get("text", "") for part in parts)


def old(part: Told) -> Told:
    """A plain part as JSON-RPC of 0.2 and 0.3 writes it."""
    if "text" in part:
        return {"kind": "text", "text": part["text"]}
    if "data" in part:
        return {"kind": "data", "data": part["data"]}
    file = {"name": part["name"], "mimeType": part["type"]}
    file |= {"bytes": part["bytes"]} if "bytes" in part else {"uri": part["url"]}
    return {"kind": "file", "file": file}


def _message(told: Told) -> Told:
    parts = told.get("parts") or told.get("content") or []
    role = str(told.get("role", "")).removeprefix("ROLE_").lower()
    return {"role": role, "parts": [_part(part) for part in parts]}


def _artifact(told: Told) -> Told:
    return {"name": told.get("name") or "", "parts": [_part(part) for part in told["parts"]]}


def _part(told: Told) -> Told:
    if isinstance(file := told.get("file"), dict):
        held = file.get("bytes") or file.get("fileWithBytes")
        found = {"bytes": held} if held else {"url": file.get("uri") or file.get("fileWithUri")}
        return found | {"name": file.get("name"), "type": file.get("mimeType")}
    if "raw" in told or "url" in told:
        found = {"bytes": told["raw"]} if "raw" in told else {"url": told["url"]}
        return found | {"name": told.get("filename"), "type": told.get("mediaType")}
    if "data" in told:
        return {"data": told["data"]}
    return {"text": told.get("text", "")}


def fault(error: BaseException) -> Told:
    """What an SDK raises: its class, and the code that it carries in some way."""
    found: Told = {"error": type(error).__name__, "said": str(error)[:300]}
    held = getattr(error, "error", None)
    for code in (getattr(held, "code", None), getattr(error, "code", None)):
        code = code() if callable(code) else code
        if code is not None:
            found["code"] = getattr(code, "name", code)
            break
    else:
        found["code"] = getattr(error, "status_code", None)
    return found
