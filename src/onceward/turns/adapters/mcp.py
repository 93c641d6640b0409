"""Old import path of `onceward.integrations.mcp`."""

from onceward.integrations.mcp import ENVELOPE_SCHEMA, OnceTools, mcp_server

__all__ = ["ENVELOPE_SCHEMA", "OnceTools", "mcp_server"]
