"""MCP servers as agents: each tool is a skill.

mcp_servers       which server: a command, or a URL
server_process    a server that runs as a child process
server_over_http  a server that is reached over HTTP
server_tasks      MCP's extension for tasks, for tools that run only as tasks
connection        one connection to a server
connection_pool   the connections to one server: how many, for whom, and when they end
tool_definitions  what a server says of its tools, made safe for a card
approved_tools    which definitions of tools are approved
tool_questions    what a tool asks, as questions to the client, and the answers
sampling          what a tool asks of a model
held_calls        calls that wait for an answer in their connections
running_call      a call of a tool while it runs
call_step         what one step of a call does
tool_call         a call of a tool as a durable turn
mcp_agent         the agent
"""
