"""The tools of an MCP server as the skills of an agent: `dragoman serve examples.mcp_tools:agent`.

Each tool is called by data, without a model:
`dragoman call http://localhost:8000 add --a 1 --b 2`
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

from dragoman import mcp

tools = MCPServer("calculator")


@tools.tool(title="Add two numbers")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = mcp.agent(
    mcp.StdioServer(
        command=(sys.executable, __file__),  # any MCP server, such as ("uvx", "mcp-server-time")
        name="calculator",
        env={"PRECISION": "2"},  # it inherits PATH and a few others, nothing secret
    ),
    name="Calculator",
    timeout=60,
)

if __name__ == "__main__":
    tools.run()
