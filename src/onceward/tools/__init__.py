"""Tools that have one effect however often they are called. Needs only the ledger.

`tool` declares a tool, `Toolbox` calls it, `functions` passes it to a framework. Not here: frameworks
(`onceward.integrations`), and turns (`onceward.turns`).
Start with `tool.py`, then `execution.py`.
"""

from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.functions import functions
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox

__all__ = [
    "CallStatus",
    "Envelope",
    "Tool",
    "Toolbox",
    "call",
    "envelope",
    "fingerprint",
    "functions",
    "invocation",
    "json_result",
    "keys",
    "observer",
    "tool",
    "toolbox",
]
