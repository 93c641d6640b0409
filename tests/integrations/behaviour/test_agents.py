"""Tool calls that are repeated, interrupted or lost, as a model sees them under every framework."""

from __future__ import annotations

from collections.abc import Callable

from tests.integrations.behaviour.agent_worker import AdapterSpec, AgentWorker

Effects = Callable[[], list[str]]
PAID = {"refunded": "42", "amount": 5}


def test_a_duplicate_call_gets_the_first_result(worker: AgentWorker, effects: Effects) -> None:
    first, again = worker.call(), worker.call()

    assert (first["status"], again["status"]) == ("done", "replayed")
    assert first["result"] == again["result"] == PAID
    assert effects() == ["42"]


def test_a_call_that_the_model_plans_again_has_one_effect(worker: AgentWorker, effects: Effects) -> None:
    worker.call("42", 5, "first try", call_id="call-1")

    again = worker.call("42", 5, "I try it again", call_id="call-2")

    assert (again["status"], again["result"]) == ("replayed", PAID)
    assert effects() == ["42"]


def test_other_arguments_for_the_same_key_are_refused(worker: AgentWorker, effects: Effects) -> None:
    worker.call("42", 5)

    other = worker.call("42", 6, call_id="call-2")

    assert (other["status"], other["code"], other["result"]) == ("refused", "key-reused", None)
    assert effects() == ["42"]


def test_another_key_and_another_conversation_have_their_own_effects(worker: AgentWorker, effects: Effects) -> None:
    calls = [worker.call("42"), worker.call("43"), worker.call("42", conversation="chat-2")]

    assert [one["status"] for one in calls] == ["done"] * 3
    assert effects() == ["42", "43", "42"]


def test_an_exception_after_the_effect_leaves_it_unknown(worker: AgentWorker, effects: Effects) -> None:
    first, again = worker.call(mode="raise"), worker.call()

    assert (first["status"], again["status"]) == ("unknown", "unknown")
    assert "connection lost" in first["detail"]
    assert (again["code"], again["may_retry"]) == ("in-doubt", False)
    assert effects() == ["42"]


def test_a_result_that_cannot_be_stored_is_not_invented_later(worker: AgentWorker, effects: Effects) -> None:
    first, again = worker.call(mode="huge"), worker.call()

    assert (first["status"], first["result"]) == ("done", "huge")
    assert (again["status"], again["result"], again["code"]) == ("replayed", None, "outcome-not-kept")
    assert effects() == ["42"]


def test_a_cancelled_call_is_never_repeated(worker: AgentWorker, adapter: AdapterSpec, effects: Effects) -> None:
    cancelled = worker.call(mode="cancel")

    again = worker.call()

    assert cancelled["status"] == "cancelled"
    assert again["status"] == adapter.after_cancel
    assert effects() == ["42"]


def test_a_process_that_dies_after_the_effect_leaves_a_doubt(
    start_worker: Callable[[], AgentWorker], effects: Effects
) -> None:
    first = start_worker()
    first.order(mode="pause")
    assert first.report() == {"at": "effect"}
    first.kill()

    resumed = start_worker().call()

    assert (resumed["status"], resumed["code"]) == ("unknown", "in-doubt")
    assert effects() == ["42"]


def test_two_workers_at_once_have_one_effect(start_worker: Callable[[], AgentWorker], effects: Effects) -> None:
    first, second = start_worker(), start_worker()
    first.order(mode="pause", call_id="call-1")
    assert first.report() == {"at": "effect"}
    second.order(call_id="call-2")
    first.go_on()

    assert (first.report()["status"], second.report()["status"]) == ("done", "replayed")
    assert effects() == ["42"]


def test_a_store_that_is_down_runs_nothing_and_decides_nothing(worker: AgentWorker, effects: Effects) -> None:
    down = worker.call(mode="store down")

    assert (down["status"], down["code"], down["may_retry"]) == ("unknown", "store-unavailable", True)
    assert effects() == []
    assert worker.call()["status"] == "done"
    assert effects() == ["42"]
