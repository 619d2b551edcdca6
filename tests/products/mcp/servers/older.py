"""Runs an MCP server so that it speaks an older version of the protocol: `older.py VERSION
COMMAND…`. Newer requests are refused, and the client is said to offer this version."""

from __future__ import annotations

import json
import subprocess
import sys
import threading


def main(version: str, command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    lock = threading.Lock()

    def say(line: bytes) -> None:
        with lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def outward(lines: object = process.stdout) -> None:
        for line in process.stdout or ():
            say(line)
        sys.stdout.close()

    threading.Thread(target=outward, daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": error}
            say(json.dumps(answer).encode() + b"\n")
            continue
        if message.get("method") == "initialize":
            message["params"]["protocolVersion"] = version
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    process.stdin.close()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
