"""Tools that have one effect however often they are called. Needs only the ledger.

What a tool is: `tool`. How it is called: `Toolbox`. How a framework gets it: `functions`, or `onceward.integrations`.
"""

from onceward.turns.adapters.functions import functions
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.tool import Tool, tool
from onceward.turns.toolbox import Toolbox

__all__ = ["CallStatus", "Envelope", "Tool", "Toolbox", "functions", "tool"]
