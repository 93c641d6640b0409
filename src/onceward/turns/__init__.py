"""Turns and tools under their public names: re-exports of `onceward.hub.turns` and `onceward.tools`.

Nothing is defined here. Tools and keys need only the ledger. A name that needs the extra `hub` is imported on use.
Start with `onceward/hub/turns/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.hub import turns as _turns
from onceward.hub.turns import (
    BeatIdempotencyManager,
    Call,
    CallStatus,
    Decision,
    Envelope,
    Gate,
    IdempotencyCache,
    IdempotencyCheckResult,
    IdempotencyStatus,
    LogicalTurn,
    NullGate,
    Observer,
    Tool,
    Toolbox,
    build_tool_idempotency_key,
    dep_fp,
    extract_business_key,
    input_fp,
    settled_decision,
    tool,
)

if TYPE_CHECKING:
    from onceward.hub.turns import (
        Artifacts,
        Brain,
        ChannelAdapter,
        Chunk,
        Context,
        Engine,
        Explanation,
        Intake,
        LocalRunner,
        Message,
        Received,
        Runner,
        State,
        Status,
        StreamPage,
        ToolCall,
        Turn,
        TurnGateway,
        UserMessage,
        get_turn,
        load_brain,
        messages_of,
        read_chunks,
        stream_page,
        tools_of,
    )

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


def __getattr__(name: str) -> Any:
    return getattr(_turns, name)
