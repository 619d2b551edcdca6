"""Agents as tools: an MCP server whose tools are the skills of A2A agents.

exposed_agents   the agents behind the server: those of an App, or remote ones
tools            the skills on their cards as tools
exchange         one request of an MCP client: who sends it, and what that client can do
tool_call        one call of a tool: send, report progress, wait, ask, answer
questions        what a task asks, as elicitation, and what the answer means for the task
results          what a task has brought, as the result of a tool
task_extension   MCP's extension for tasks: the task of A2A is the task of MCP
task_tools       the tools `get_task`, `answer_task` and `cancel_task`, for other clients
task_ids         the ids of tasks that MCP clients see
resources        artifacts of past tasks
prompts          the examples of skills
protocol_server  puts all of these into a server of the SDK
application      streamable HTTP, mounted in an App
stdio            standard input and output
"""
