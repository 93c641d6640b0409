"""A stdio proxy that makes the tools of any MCP server once-only: `onceward mcp wrap`. It needs no extra.

`wrap` runs a server, `load_config` reads the file that declares its tools. Not here: the command (`cli/commands/mcp.py`).
Start with `proxy.py`.
"""

from onceward.integrations.mcp_wrap.config import WrapConfig, load_config
from onceward.integrations.mcp_wrap.process import wrap

__all__ = ["WrapConfig", "load_config", "wrap"]
