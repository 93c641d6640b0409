"""Turns: messages of a beat gathered, answered by a brain, and committed once, however often the work begins anew.

Tools and keys need only the ledger. The names that need the extra `hub` are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onceward.turns.beat import BeatIdempotencyManager, LogicalTurn
from onceward.turns.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.turns.call import Call, Gate, NullGate
from onceward.turns.decision import Decision, settled_decision
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.fingerprint import dep_fp, input_fp
from onceward.turns.keys import build_tool_idempotency_key, extract_business_key
from onceward.turns.observe import IdempotencyStatus, Observer
from onceward.turns.tool import Tool, tool
from onceward.turns.toolbox import Toolbox

if TYPE_CHECKING:
    from onceward.turns.artifacts import Artifacts, Explanation
    from onceward.turns.brain import Brain, load_brain
    from onceward.turns.context import Context
    from onceward.turns.deliver import ChannelAdapter
    from onceward.turns.engine import Engine
    from onceward.turns.gateway import TurnGateway
    from onceward.turns.message import UserMessage
    from onceward.turns.receive import Intake, Received, Status
    from onceward.turns.runners import Runner
    from onceward.turns.runners.local import LocalRunner
    from onceward.turns.stream import Chunk, StreamPage, read_chunks, stream_page
    from onceward.turns.turn import Message, State, ToolCall, Turn, get_turn, messages_of, tools_of

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
    "Artifacts": "artifacts",
    "Brain": "brain",
    "ChannelAdapter": "deliver",
    "Chunk": "stream",
    "Context": "context",
    "Engine": "engine",
    "Explanation": "artifacts",
    "Intake": "receive",
    "LocalRunner": "runners.local",
    "Message": "turn",
    "Received": "receive",
    "Runner": "runners",
    "State": "turn",
    "Status": "receive",
    "StreamPage": "stream",
    "ToolCall": "turn",
    "Turn": "turn",
    "TurnGateway": "gateway",
    "UserMessage": "message",
    "get_turn": "turn",
    "load_brain": "brain",
    "messages_of": "turn",
    "read_chunks": "stream",
    "stream_page": "stream",
    "tools_of": "turn",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onceward"):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs {error.name!r}: pip install 'onceward[hub]'", name=error.name
        ) from error
    globals()[name] = value
    return value
