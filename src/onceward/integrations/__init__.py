"""Integrations of frameworks that call tools, one module for each. Only that module imports the framework.

Each module uses the framework's own extension points. `mcp_wrap/` is a proxy for MCP servers in any language.
Not here: the tools themselves (`onceward.tools`).
Start with `mcp.py`.
"""

__all__ = [
    "fastmcp",
    "langchain",
    "mcp",
    "mcp_identity",
    "mcp_result",
    "mcp_wrap",
    "openai_agents",
    "pydantic_ai",
    "running_calls",
]
