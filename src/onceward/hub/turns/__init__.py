"""Turns: messages, the brain that answers them, and one response, however often an attempt is repeated.

Tools and keys need only the ledger; a name that needs the extra `hub` is imported on first use. Not here: tools
(`onceward.tools`), and turns over HTTP (`hub/chat/`).
Start with `execution/engine.py`; `model/transitions.py` has every change of a turn's row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onceward.errors import missing_extra
from onceward.hub.turns.compat.beat import BeatIdempotencyManager, LogicalTurn
from onceward.hub.turns.compat.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.hub.turns.model.decision import Decision, settled_decision
from onceward.tools.call import Call, Gate, NullGate
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.fingerprint import dep_fp, input_fp
from onceward.tools.keys import build_tool_idempotency_key, extract_business_key
from onceward.tools.observer import IdempotencyStatus, Observer
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from onceward.hub.turns.artifacts.artifacts import Artifacts, Explanation
    from onceward.hub.turns.execution.brain import Brain, load_brain
    from onceward.hub.turns.execution.context import Context
    from onceward.hub.turns.execution.delivery import ChannelAdapter
    from onceward.hub.turns.execution.engine import Engine
    from onceward.hub.turns.intake.gateway import TurnGateway
    from onceward.hub.turns.intake.receive import Intake, Received, Status
    from onceward.hub.turns.model.message import UserMessage
    from onceward.hub.turns.model.stream import Chunk, StreamPage, read_chunks, stream_page
    from onceward.hub.turns.model.turn import Message, State, ToolCall, Turn, get_turn, messages_of, tools_of
    from onceward.hub.turns.runners import Runner
    from onceward.hub.turns.runners.local import LocalRunner

__all__ = [
    "Artifacts",
    "BeatIdempotencyManager",
    "Brain",
    "Call",
    "CallStatus",
    "ChannelAdapter",
    "Chunk",
    "Context",
    "Decision",
    "Engine",
    "Envelope",
    "Explanation",
    "Gate",
    "IdempotencyCache",
    "IdempotencyCheckResult",
    "IdempotencyStatus",
    "Intake",
    "LocalRunner",
    "LogicalTurn",
    "Message",
    "NullGate",
    "Observer",
    "Received",
    "Runner",
    "State",
    "Status",
    "StreamPage",
    "Tool",
    "ToolCall",
    "Toolbox",
    "Turn",
    "TurnGateway",
    "UserMessage",
    "build_tool_idempotency_key",
    "dep_fp",
    "extract_business_key",
    "get_turn",
    "input_fp",
    "load_brain",
    "messages_of",
    "read_chunks",
    "settled_decision",
    "stream_page",
    "tool",
    "tools_of",
]

_HOMES = {
    "Artifacts": "artifacts.artifacts",
    "Brain": "execution.brain",
    "ChannelAdapter": "execution.delivery",
    "Chunk": "model.stream",
    "Context": "execution.context",
    "Engine": "execution.engine",
    "Explanation": "artifacts.artifacts",
    "Intake": "intake.receive",
    "LocalRunner": "runners.local",
    "Message": "model.turn",
    "Received": "intake.receive",
    "Runner": "runners",
    "State": "model.turn",
    "Status": "intake.receive",
    "StreamPage": "model.stream",
    "ToolCall": "model.turn",
    "Turn": "model.turn",
    "TurnGateway": "intake.gateway",
    "UserMessage": "model.message",
    "get_turn": "model.turn",
    "load_brain": "execution.brain",
    "messages_of": "model.turn",
    "read_chunks": "model.stream",
    "stream_page": "model.stream",
    "tools_of": "model.turn",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'onceward.turns' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onceward"):
            raise
        raise missing_extra(error, f"onceward.turns.{name}", "hub") from error
    globals()[name] = value
    return value
