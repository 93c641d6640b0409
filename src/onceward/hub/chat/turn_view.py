"""A turn as JSON for clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceward.core.canonical import Json
from onceward.hub.turns.model.turn import UNFINISHED, Message, State, ToolCall, Turn


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn with its messages and its recorded tool calls."""

    turn: Turn
    messages: Sequence[Message]
    tools: Sequence[ToolCall]

    @property
    def is_over(self) -> bool:
        return self.turn.state not in UNFINISHED

    def chat_response(self) -> dict[str, Json]:
        """Return the body of the response to `/chat`."""
        turn = self.turn
        if turn.state in UNFINISHED:
            return {"status": "processing", "turn_id": turn.id}
        content: dict[str, Json] = {"status": turn.state.value, "turn_id": turn.id, "response": turn.answer}
        content["messages"] = [*map(_message, self.messages)]
        if turn.state is State.SUPERSEDED:
            content["superseded_by"] = turn.superseded_by
        if turn.state is State.FAILED:
            content["error"] = turn.failure
        return content

    def json(self) -> dict[str, Json]:
        """Return the body of the response to `/turns/{id}`."""
        turn = self.turn
        return {
            "turn_id": turn.id,
            "turn_group_id": turn.turn_group_id,
            "session_key": turn.session_key,
            "status": turn.state.value,
            "messages": [*map(_message, self.messages)],
            "response": turn.answer,
            "superseded_by": turn.superseded_by,
            "tools": [*map(_tool, self.tools)],
            "reason": turn.reason,
            "error": turn.failure,
            "attempts": turn.attempts,
            "created_at": turn.created_at,
            "completed_at": turn.completed_at,
        }


def _message(message: Message) -> dict[str, Json]:
    return {
        "message_id": message.message_id,
        "content": message.content,
        "metadata": message.metadata,
        "created_at": message.created_at,
    }


def _tool(call: ToolCall) -> dict[str, Json]:
    return {
        "tool": call.tool,
        "key": call.key,
        "effect": call.effect,
        "status": call.status,
        "arguments": {**call.arguments},
        "receipt": call.receipt,
        "created_at": call.created_at,
    }
