"""Results of tools that Onceward did not declare, with the envelope beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward.integrations.mcp_result import foreign_result
from onceward.tools.envelope import CallStatus, Envelope

OWN: dict[str, Any] = {
    "content": [{"type": "text", "text": "paid"}],
    "structuredContent": {"paid": True},
    "_meta": {"trace": 1},
}


def test_a_result_of_this_call_is_the_tools_own() -> None:
    shown = foreign_result(Envelope(CallStatus.DONE, "pay", "k", result=OWN))

    assert {**shown, "_meta": OWN["_meta"]} == OWN
    assert shown["_meta"]["trace"] == 1
    assert shown["_meta"]["onceward"]["status"] == "done"
    assert "result" not in shown["_meta"]["onceward"]


def test_a_result_that_is_replayed_or_could_not_be_stored_says_so_to_the_model() -> None:
    for envelope in (
        Envelope(CallStatus.REPLAYED, "pay", "k", result=OWN),
        Envelope(CallStatus.DONE, "pay", "k", result=OWN, detail="its result could not be stored"),
    ):
        shown = foreign_result(envelope)

        assert shown["content"][0] == OWN["content"][0]
        assert json.loads(shown["content"][1]["text"]) == shown["_meta"]["onceward"]
        assert shown["structuredContent"] == OWN["structuredContent"]


@pytest.mark.parametrize("status", [CallStatus.UNKNOWN, CallStatus.REFUSED, CallStatus.IN_PROGRESS])
def test_a_call_that_has_not_happened_is_an_error_without_structured_content(status: CallStatus) -> None:
    failed = {"content": [{"type": "text", "text": "no answer"}], "isError": True}

    shown, after_error = (foreign_result(Envelope(status, "pay", "k"), one) for one in (None, failed))

    assert shown["isError"] is after_error["isError"] is True
    assert [len(shown["content"]), len(after_error["content"])] == [1, 2]
    assert "structuredContent" not in shown
    assert json.loads(shown["content"][0]["text"])["status"] == status


@pytest.mark.parametrize("structured", [False, True])
def test_a_result_that_is_lost_is_an_error_only_for_clients_that_check_it(structured: bool) -> None:
    """A client refuses a result without structured content if the tool has an output schema."""
    shown = foreign_result(Envelope(CallStatus.REPLAYED, "pay", "k", code="outcome-not-kept"), structured=structured)

    assert shown["isError"] is structured
    assert shown["_meta"]["onceward"]["code"] == "outcome-not-kept"


def test_a_value_of_an_operator_is_shown_as_text() -> None:
    shown = foreign_result(Envelope(CallStatus.REPLAYED, "pay", "k", result={"bank": 7}))

    assert [json.loads(one["text"]) for one in shown["content"]] == [{"bank": 7}, shown["_meta"]["onceward"]]
