"""A LangGraph graph as a brain: superseded, absorbed and queued messages, undone effects, and checkpoints."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from tests.hub.turns.turn_harness import TurnHarness, opened
from tests.waiting import SECONDS_MAX

from onceward import errors
from onceward.hub.db.engine import open_database
from onceward.hub.turns.model.stream import read_chunks
from onceward.integrations.langchain import awrap_tool_call, wrap_tool_call
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Decision, State, Turn, tools_of
from onceward.turns.brains.langgraph import graph_brain

SUPERSEDE, ABSORB, QUEUE = Decision.SUPERSEDE, Decision.ABSORB, Decision.QUEUE


class StoppingAgent:
    """A graph of a model and a tool with an effect, which stops at the point that the test names."""

    def __init__(self, effect: str, stops_at: str = "", checkpointer: Any = None, *, is_quiet: bool = False) -> None:
        self.stops_at = stops_at
        self.is_quiet = is_quiet
        self.happened: list[str] = []
        self.seen: list[list[str]] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.rules: dict[str, Any] = {"act": {"effect": effect, "key_fields": ["thing"]}}
        if effect == "compensatable":
            self.rules["act"]["undo"] = self._undo
        self._call_ids = itertools.count()
        self.graph = self._build(checkpointer)

    def _build(self, checkpointer: Any) -> Any:
        @tool
        async def act(thing: str) -> str:
            """Have an effect."""
            self.happened.append(thing)
            await self._at("effect")
            return f"did {thing}"

        graph = StateGraph(MessagesState)
        graph.add_node("model", self._model)
        graph.add_node("tools", ToolNode([act], awrap_tool_call=awrap_tool_call(None, self.rules)))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=checkpointer)

    def brain(self, **options: Any) -> Brain:
        return graph_brain(self.graph, self.rules, **options)

    def _undo(self, thing: str, result: Any) -> None:
        self.happened.append(f"undo {thing}: {result['content']}")

    async def _at(self, point: str) -> None:
        """Stop at the point once; later runs pass it."""
        if point == self.stops_at:
            self.stops_at = ""
            self.reached.set()
            await self.go_on.wait()

    async def step(self, name: str, _turn: Turn) -> None:
        await self._at(name)

    async def _model(self, state: MessagesState) -> dict[str, Any]:
        messages: Sequence[BaseMessage] = state["messages"]
        last = messages[-1]
        if isinstance(last, HumanMessage):
            self.seen.append([f"{one.type}: {one.text}" for one in messages])
            await self._at("model")
            call = {
                "name": "act",
                "args": {"thing": last.text[-1]},
                "id": f"call-{next(self._call_ids)}",
                "type": "tool_call",
            }
            return {"messages": [AIMessage("", tool_calls=[call] if "act" in last.text else [])]}
        assert isinstance(last, ToolMessage)
        await self._at("answer")
        return {"messages": [AIMessage("" if self.is_quiet else json.loads(str(last.content))["status"])]}


@pytest.fixture
def play(sqlite_template: Path, tmp_path: Path) -> Callable[..., None]:
    """Run a story with one or more processes of a hub, all with the same brain."""

    def run(make: Callable[[], StoppingAgent], story: Callable[..., Coroutine[Any, Any, None]], **options: Any) -> None:
        (tmp_path / "hub.db").write_bytes(sqlite_template.read_bytes())

        async def live() -> None:
            agent = make()
            with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database, open_ledger("memory:") as ledger:
                brain = agent.brain(**options)
                steps: dict[str, Any] = {"step": agent.step} if isinstance(agent, StoppingAgent) else {}
                one, other = (TurnHarness(database, ledger, brain, max_attempts=1, **steps) for _ in range(2))
                async with opened(one), opened(other):
                    await asyncio.wait_for(story(agent, one, other), SECONDS_MAX)

        asyncio.run(live())

    return run


def statuses(hub: TurnHarness, turn_id: str) -> list[tuple[str, str]]:
    with hub.database.read() as tx:
        return [(one.tool, one.status) for one in tools_of(tx, hub.turn(turn_id))]


def test_a_superseded_run_is_refused_before_its_effect(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, other: TurnHarness) -> None:
        first = await one.say("act on x", session_key="s")
        await agent.reached.wait()
        # Another process receives it, so that nothing but the gate stops the first run.
        second = await other.say("no, act on y", session_key="s")
        agent.go_on.set()
        await one.idle()
        await other.sweep()

        assert second.decision is SUPERSEDE
        assert agent.happened == ["y"]
        assert agent.seen == [["human: act on x"], ["human: act on x", "human: no, act on y"]]
        assert one.turn(first.turn_id).state is State.SUPERSEDED
        assert statuses(one, first.turn_id) == []
        assert other.turn(second.turn_id).answer == "done"
        assert statuses(other, second.turn_id) == [("act", "done")]

    play(lambda: StoppingAgent("irreversible", "model"), story)


def test_a_run_superseded_after_its_effect_gets_it_replayed(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        await one.say("act on x", session_key="s")
        await agent.reached.wait()
        second = await one.say("now act on x", session_key="s")
        await one.idle()

        assert second.decision is SUPERSEDE
        assert agent.happened == ["x"]
        assert one.turn(second.turn_id).answer == "replayed"

    play(lambda: StoppingAgent("idempotent", "answer"), story, decide=lambda *_: SUPERSEDE)


def test_the_effect_of_a_superseded_run_is_undone(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        await one.say("act on x", session_key="s")
        await agent.reached.wait()
        second = await one.say("now act on x", session_key="s")
        await one.idle()

        assert agent.happened == ["x", "undo x: did x", "x"]
        assert one.turn(second.turn_id).answer == "done"

    play(lambda: StoppingAgent("compensatable", "answer"), story, decide=lambda *_: SUPERSEDE)


def test_an_absorbed_message_is_one_more_message_of_the_user(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        first = await one.say("act on x", session_key="s")
        await agent.reached.wait()
        second = await one.say("and act on x", session_key="s")
        await one.idle()

        assert (second.decision, second.turn_id) == (ABSORB, first.turn_id)
        assert agent.seen[-1] == ["human: act on x", "human: and act on x"]
        assert agent.happened == ["x"]

    play(lambda: StoppingAgent("irreversible", "model"), story, decide=lambda *_: ABSORB)


def test_a_message_during_an_irreversible_effect_is_queued(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        first = await one.say("act on x", session_key="s")
        await agent.reached.wait()
        second = await one.say("again act on x", session_key="s")
        assert second.decision is QUEUE
        assert agent.seen == [["human: act on x"]]
        agent.go_on.set()
        await one.idle()

        assert agent.seen == [["human: act on x"], ["human: again act on x"]]
        assert [one.turn(turn.turn_id).answer for turn in (first, second)] == ["done", "done"]
        assert agent.happened == ["x", "x"]  # a new question has a new group

    play(lambda: StoppingAgent("irreversible", "effect"), story)


@pytest.mark.parametrize("decision", [SUPERSEDE, ABSORB])
def test_a_checkpointer_has_no_traces_of_a_run_that_was_replaced(play: Callable[..., None], decision: Decision) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        await one.say("act on x", session_key="s")
        await agent.reached.wait()
        second = await one.say("now act on x", session_key="s")
        await one.idle()
        await one.say("thanks", session_key="s")
        await one.say("thanks", session_key="other")
        await one.say("thanks", session_key="s", principal="other")
        await one.idle()

        assert agent.happened == ["x"]
        assert one.turn(second.turn_id).answer == "replayed"
        result = next(text for text in agent.seen[2] if text.startswith("tool: "))
        assert agent.seen == [
            ["human: act on x"],
            ["human: act on x", "human: now act on x"],
            ["human: act on x", "human: now act on x", "ai: ", result, "ai: replayed", "human: thanks"],
            ["human: thanks"],
            ["human: thanks"],
        ]

    play(lambda: StoppingAgent("idempotent", "answer", InMemorySaver()), story, decide=lambda *_: decision)


def test_a_run_that_is_replaced_after_the_end_of_its_graph_leaves_no_traces(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, _other: TurnHarness) -> None:
        await one.say("act on x", session_key="s")
        await agent.reached.wait()
        await one.say("now act on x", session_key="s")
        agent.go_on.set()
        await one.idle()

        assert agent.seen[1:] == [["human: act on x", "human: now act on x"]]
        assert agent.happened == ["x"]

    play(lambda: StoppingAgent("idempotent", "answered", InMemorySaver()), story, decide=lambda *_: SUPERSEDE)


def test_checkpoints_of_a_late_superseded_run_are_not_the_history(play: Callable[..., None]) -> None:
    async def story(agent: StoppingAgent, one: TurnHarness, other: TurnHarness) -> None:
        first = await one.say("act on x", session_key="s")
        await agent.reached.wait()
        await other.say("now act on x", session_key="s")
        await other.sweep()
        agent.go_on.set()  # the first run ends its graph now, and writes the newest checkpoint
        await one.idle()
        await other.say("thanks", session_key="s")
        await other.idle()

        assert one.turn(first.turn_id).state is State.SUPERSEDED
        assert agent.seen[-1][:2] == ["human: act on x", "human: now act on x"]
        assert agent.seen[-1][-1] == "human: thanks"
        assert agent.happened == ["x"]

    # A run without text ends its graph: the stream does not refuse it earlier.
    play(
        lambda: StoppingAgent("idempotent", "answer", InMemorySaver(), is_quiet=True),
        story,
        decide=lambda *_: SUPERSEDE,
    )


class StreamingGraph:
    """A graph whose model streams words."""

    def brain(self) -> Brain:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))

        async def node(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", node)
        graph.add_edge(START, "model")
        return graph_brain(graph.compile())


def test_the_words_of_the_model_are_streamed(play: Callable[..., None]) -> None:
    async def story(_desk: Any, one: TurnHarness, _other: TurnHarness) -> None:
        received = await one.say("hello")
        await one.idle()

        with one.database.read() as tx:
            chunks = read_chunks(tx, received.turn_id, 1, 0)
        streamed = [json.loads(one.data)["text"] for one in chunks if one.event == "delta"]
        assert "".join(streamed) == one.turn(received.turn_id).answer == "one two three"
        assert len(streamed) > 1

    play(cast("Any", StreamingGraph), story)


class UnfitGraph:
    """A graph that does not fit into turns."""

    def __init__(self, *nodes: Any, checkpointer: Any = None, rules: Any = None) -> None:
        graph = StateGraph(MessagesState).add_sequence([(f"node-{at}", node) for at, node in enumerate(nodes)])
        graph.add_edge(START, "node-0")
        self.graph = graph.compile(checkpointer=checkpointer)
        self.rules = rules

    def brain(self) -> Brain:
        return graph_brain(self.graph, self.rules)


RULES: dict[str, Any] = {"act": {"effect": "irreversible"}}


@tool
def act(thing: str) -> str:
    """Have an effect."""
    raise AssertionError(thing)


def ask(_state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(interrupt("Which order?"))]}


def call_act(_state: MessagesState) -> dict[str, Any]:
    call = {"name": "act", "args": {"thing": "x"}, "id": "call-1", "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def say_nothing(_state: MessagesState) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UnfitGraph(say_nothing), "did not end with a message of the model; pass to_response="),
        (lambda: UnfitGraph(ask, checkpointer=InMemorySaver()), "has stopped at an interrupt"),
        (
            lambda: UnfitGraph(call_act, ToolNode([act], awrap_tool_call=awrap_tool_call(None, RULES))),
            "the brain does not know the rule of 'act'; pass the rules to graph_brain",
        ),
        (
            lambda: UnfitGraph(
                call_act, ToolNode([act], awrap_tool_call=awrap_tool_call(None, RULES, scope="s")), rules=RULES
            ),
            "remove scope=",
        ),
        (
            lambda: UnfitGraph(call_act, ToolNode([act], wrap_tool_call=wrap_tool_call(None, RULES))),
            "pass awrap_tool_call=",
        ),
    ],
    ids=["no-answer", "interrupt", "unknown-rule", "scope", "sync-wrapper"],
)
def test_a_graph_that_does_not_fit_into_turns_fails_its_turn_without_an_effect(
    play: Callable[..., None], make: Callable[[], Any], message: str
) -> None:
    async def story(_desk: Any, one: TurnHarness, _other: TurnHarness) -> None:
        received = await one.say("hello")
        await one.idle()

        turn = one.turn(received.turn_id)
        assert turn.state is State.FAILED
        assert message in str(turn.failure)

    play(make, story)


def test_a_graph_must_be_compiled() -> None:
    with pytest.raises(errors.InvalidOption, match="needs a compiled graph, got StateGraph; call its compile"):
        graph_brain(StateGraph(MessagesState))


def test_a_tool_that_would_run_without_its_rule_is_refused() -> None:
    unfit = UnfitGraph(call_act, ToolNode([act]), rules=RULES)

    with pytest.raises(errors.InvalidOption, match=r"'act' without its rule; add OnceToolMiddleware\(None, rules\)"):
        unfit.brain()
    unfit.rules = {"act": {"effect": "pure"}}
    unfit.brain()
