"""A hub whose brain is a LangGraph graph, killed in the middle of a turn."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from tests.hub.hub_process import ROOT, RunningHub, running_hub
from tests.waiting import until

from onceward.hub.client import BlockingHub


def test_a_turn_whose_hub_is_killed_after_the_effect_continues_without_repeating_it(tmp_path: Path) -> None:
    def hub() -> contextlib.AbstractContextManager[RunningHub]:
        args = ("--brain", "examples.langgraph_agent.agent:brain")
        return running_hub(data_dir=tmp_path / "data", args=args, env={"DESK_FOLDER": str(tmp_path)}, cwd=ROOT)

    bank_is_busy, model_is_busy = tmp_path / "bank-is-busy", tmp_path / "model-is-busy"
    bank_is_busy.touch()
    with hub() as first, BlockingHub(first.url) as client:
        turn_id = client.chat.say("Refund order 1234").turn_id
        until((tmp_path / "bank-was-called").exists)
        model_is_busy.touch()
        bank_is_busy.unlink()
        until(lambda: [one.status for one in client.chat.turn(turn_id).tools] == ["done"])
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    model_is_busy.unlink()
    with hub() as second, BlockingHub(second.url) as client:
        done = client.chat.finished(turn_id, 30)
        turn = client.chat.turn(turn_id)
        results = [event.data["status"] for event in client.chat.follow(turn_id) if event.name == "tool"]

    assert (done.status, done.response, turn.attempts) == ("complete", "Refunded: 1234.", 2)
    assert results == ["replayed"]
    assert [one.status for one in turn.tools] == ["done"]
    assert (tmp_path / "bank.txt").read_text() == "1234\n"
