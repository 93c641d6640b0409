"""LangGraph: an entrypoint with one thread per key and the effect as its task. Default durability.

The default is `durability="async"`: other threads write checkpoints during the run, and all of them are stored when it
returns. On SQLite, its checkpointer sets the file to WAL and leaves `synchronous` at FULL.

A key alone does not cause a replay: the same input on a finished thread runs the task again. A replay is an `invoke`
without input, so the caller has to know about the earlier call. Here the caller knows it at no cost. There are two cases:

    resumed    The thread was interrupted after its task. The entrypoint runs again and gets the task's result from the
               checkpoint, as LangGraph promises for tasks. It is then interrupted again, which it writes.
    finished   (as the second argument) The thread has ended. Its result is read from the checkpoint, and neither the
               entrypoint nor the task runs.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.types import interrupt

from bench.load import SETTLED, Effects, with_threads
from bench.peers.speak import Peer, serve


def make(url: str) -> Peer:
    stack = ExitStack()
    saver = stack.enter_context(_saver(url))
    saver.setup()
    effects = Effects()
    # Keys that will be replayed and have not been called yet.
    unsettled = set(SETTLED)
    replayed = frozenset(SETTLED)
    interrupts = sys.argv[2:] != ["finished"]

    @task
    def pay(amount: int) -> dict[str, object]:  # noqa: ARG001  # an argument, as every real effect has
        return effects()

    @entrypoint(checkpointer=saver)
    def paying(request: dict[str, Any]) -> dict[str, object]:
        paid: dict[str, object] = pay(request["amount"]).result()
        if request["interrupted"]:
            interrupt(paid)
        return paid

    def call(key: str) -> object:
        config: Any = {"configurable": {"thread_id": key}}
        if key in replayed and key not in unsettled:
            answer = paying.invoke(None, config)
        else:
            answer = paying.invoke({"amount": 10, "interrupted": interrupts and key in replayed}, config)
            unsettled.discard(key)
        paid = answer["__interrupt__"][0].value if "__interrupt__" in answer else answer
        assert paid["paid"]
        return paid

    return Peer(
        "langgraph",
        call,
        lambda callers, seconds, name: with_threads(call, callers, seconds, name),
        effects,
        stack.close,
    )


def _saver(url: str) -> AbstractContextManager[Any]:
    if url.startswith("sqlite:"):
        return SqliteSaver.from_conn_string(url.removeprefix("sqlite:///"))
    return PostgresSaver.from_conn_string(url)


if __name__ == "__main__":
    serve(make)
