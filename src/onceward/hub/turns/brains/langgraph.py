"""A compiled LangGraph graph as a brain: `pip install 'onceward[hub,langchain]'`.

    rules = {"refund": {"effect": "irreversible", "key_fields": ["order_id"]}}
    agent = create_agent(model, [refund], middleware=[OnceToolMiddleware(None, rules)])
    brain = graph_brain(agent, rules)

Each message of the turn is a message of the user in the graph's input, so an absorbed message is one more of them. The
run's config has the `TurnCaller` of the turn, and `OnceToolMiddleware` calls tools in its name: through the epoch gate, and
once for each turn group. The text of the model goes to the turn's stream.

A turn may run several times, and a checkpointer stores each run. So the checkpoints of a run name its turn, its epoch
and its group, and a run starts from the last checkpoint at which a run of another group ended. A run that was
superseded, absorbed or killed leaves nothing behind in the state of the next one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from onceward.errors import InvalidOption, missing_extra

try:
    from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
    from langgraph.prebuilt import ToolNode
except ModuleNotFoundError as error:
    raise missing_extra(error, "onceward.turns.brains.langgraph", "langchain") from error

from onceward.core.canonical import Json
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context
from onceward.tools.call import CALLER_KEY
from onceward.tools.keys import scope_of
from onceward.tools.rules import RuleOptions, ToolRules
from onceward.tools.toolbox import Toolbox

Rules: TypeAlias = ToolRules | Mapping[str, RuleOptions] | Mapping[str, Mapping[str, Any]]
# The state or the input of a graph: any value, by the graph's schema.
GraphState: TypeAlias = Any

# Each part of the stream is a row in the database. Tokens of a model that arrive within this time share one.
_STREAM_SECONDS = 0.1

# The metadata of a checkpoint that say which run wrote it. A higher turn, then a higher epoch, is the later run.
_GROUP, _TURN, _EPOCH = "onceward_group", "onceward_turn", "onceward_epoch"


def graph_brain(
    graph: Any,
    rules: Rules | None = None,
    *,
    to_input: Callable[[Context], GraphState] | None = None,
    to_response: Callable[[GraphState], Json] | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Brain:
    """Return a brain that runs a compiled LangGraph graph on each turn.

    The `thread_id` of a run is made from the principal, the tenant and the session of its turn.

    Args:
        graph: The compiled graph, for example from `create_agent`.
        rules: The rules of its tools, the same as those of its `OnceToolMiddleware` or `awrap_tool_call`.
        to_input: Returns the input of the graph. By default, `messages` with one message for each message of the turn.
        to_response: Returns the response, from the final state. By default, the text of the model's last message.
        config: More config for each run, such as `recursion_limit`, `callbacks` or `configurable`.
        options: The other options of `Brain`: `decide`, `versions`, `reuse` and `meaningful_metadata`.

    Returns:
        The brain. Its toolbox has the rules, and undoes the effects of compensatable tools.

    Raises:
        errors.InvalidOption: It is not a compiled graph, it runs a tool without its rule, or a rule or an option is not
            valid.
    """
    if not callable(getattr(graph, "astream", None)):
        raise InvalidOption(f"graph_brain needs a compiled graph, got {type(graph).__name__}; call its compile() first")
    known = rules if isinstance(rules, ToolRules) else ToolRules({} if rules is None else rules)
    _check_tools(graph, known)
    run = _GraphRun(graph, to_input or _messages, to_response or _last_text, config or {})
    return Brain(run, Toolbox(known), **options)


def _check_tools(graph: Any, rules: ToolRules) -> None:
    """Refuse a graph whose tools have rules that nothing applies. Nodes other than a `ToolNode` are not checked."""
    for node in getattr(graph, "nodes", {}).values():
        bound = getattr(node, "bound", None)
        # A version of LangGraph without this attribute is not checked.
        if isinstance(bound, ToolNode) and getattr(bound, "_awrap_tool_call", bound) is None:
            for name in bound.tools_by_name:
                if name in rules and not rules.passes(name):
                    raise InvalidOption(
                        f"the graph runs the tool {name!r} without its rule; add OnceToolMiddleware(None, rules) to the"
                        " agent, or pass awrap_tool_call=awrap_tool_call(None, rules) to the ToolNode"
                    )


class _GraphRun:
    """The `run` of a brain that has a graph."""

    def __init__(
        self,
        graph: Any,
        to_input: Callable[[Context], GraphState],
        to_response: Callable[[GraphState], Json],
        config: Mapping[str, Any],
    ) -> None:
        self._graph = graph
        self._to_input = to_input
        self._to_response = to_response
        self._config = config

    async def __call__(self, context: Context) -> Json:
        config = await self._config_of(context)
        stream = _Stream(context)
        state: GraphState = None
        steps = self._graph.astream(self._to_input(context), config, stream_mode=["messages", "values"])
        async with contextlib.aclosing(steps):
            async for mode, data in steps:
                if mode == "values":  # the end of a step
                    await stream.flush()
                    state = data
                elif isinstance(data[0], AIMessage):
                    await stream.add(data[0])
        if isinstance(state, Mapping) and state.get("__interrupt__"):
            raise InvalidOption(
                "the graph has stopped at an interrupt(), which a brain cannot resume; ask the user in the response"
            )
        return self._to_response(state)

    async def _config_of(self, context: Context) -> dict[str, Any]:
        turn = context.turn
        thread = f"{scope_of('session', turn.principal, turn.tenant_id)}:{turn.session_key}"
        configurable = {**self._config.get("configurable", {}), "thread_id": thread, CALLER_KEY: context.caller}
        if getattr(self._graph, "checkpointer", None):
            configurable |= await _start(self._graph, thread, turn.turn_group_id)
        run = {_GROUP: turn.turn_group_id, _TURN: turn.seq, _EPOCH: turn.epoch}
        return {
            **self._config,
            "configurable": configurable,
            "metadata": {**self._config.get("metadata", {}), **run},
        }


async def _start(graph: Any, thread: str, group: str) -> dict[str, str]:
    """Return the config of the checkpoint to start from: the last one at which a run of another group ended.

    If there is none, it is the first checkpoint of the thread, which is empty. A run that was superseded may write
    checkpoints after the run that replaced it, so the numbers of the runs decide which one was later.
    """
    best, last, first = None, (0, 0), None
    async for snapshot in graph.aget_state_history({"configurable": {"thread_id": thread}}):
        metadata = snapshot.metadata or {}
        first = snapshot
        if metadata.get(_GROUP) == group:
            continue
        run = (metadata.get(_TURN, 0), metadata.get(_EPOCH, 0))
        if best is not None and run[0] < last[0]:
            break
        if not snapshot.next and (best is None or run > last):
            best, last = snapshot, run
    found = first if best is None else best
    if found is None:
        return {}
    return {"checkpoint_id": found.config["configurable"]["checkpoint_id"]}


class _Stream:
    """Text of the model on its way to the turn's stream, a few tokens at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._text: list[str] = []
        self._flushed_at = 0.0  # the first text goes out at once

    async def add(self, message: AIMessage | AIMessageChunk) -> None:
        self._text.append(str(message.text))
        if time.monotonic() - self._flushed_at >= _STREAM_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if text:
            await self._context.say(text)
            self._flushed_at = time.monotonic()


def _messages(context: Context) -> GraphState:
    return {"messages": [HumanMessage(one.content, id=one.message_id) for one in context.messages]}


def _last_text(state: GraphState) -> Json:
    messages = state.get("messages") if isinstance(state, Mapping) else None
    last = messages[-1] if messages else None
    if not isinstance(last, AIMessage):
        raise InvalidOption("the graph did not end with a message of the model; pass to_response= to graph_brain")
    return str(last.text)
