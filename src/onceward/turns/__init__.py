"""Turns: messages of a beat gathered, answered by a brain, and committed once, however often the work begins anew."""

from onceward.turns.brain import Brain, load_brain
from onceward.turns.context import Context
from onceward.turns.decision import Decision, settled_decision
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
    "Brain",
    "ChannelAdapter",
    "Chunk",
    "Context",
    "Decision",
    "Engine",
    "Intake",
    "LocalRunner",
    "Message",
    "Received",
    "Runner",
    "State",
    "Status",
    "StreamPage",
    "ToolCall",
    "Turn",
    "TurnGateway",
    "UserMessage",
    "get_turn",
    "load_brain",
    "messages_of",
    "read_chunks",
    "settled_decision",
    "stream_page",
    "tools_of",
]
