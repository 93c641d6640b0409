"""Tools that have one effect however often they are called. Needs only the ledger.

`tool` declares a tool, `Toolbox` calls it, `functions` passes it to a framework. `once_tool` decorates one function, and
`ToolRules` covers tools that a framework owns. Not here: frameworks (`onceward.integrations`), turns (`onceward.turns`).
Start with `tool.py`, then `execution.py`.
"""

from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.functions import functions
from onceward.tools.once_tool import once_tool
from onceward.tools.rules import ToolRules
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox

__all__ = [
    "CallStatus",
    "Envelope",
    "Tool",
    "ToolRules",
    "Toolbox",
    "call",
    "envelope",
    "fingerprint",
    "functions",
    "invocation",
    "json_result",
    "json_schema",
    "keys",
    "observer",
    "once_tool",
    "receipts",
    "rules",
    "tool",
    "toolbox",
]
