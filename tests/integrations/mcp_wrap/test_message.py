"""Lines as messages."""

from __future__ import annotations

import json

import pytest

from onceward.integrations.mcp_wrap import message as rpc


@pytest.mark.parametrize("value", [{"text": "a\nb\u2028c\r"}, {"text": "\ud800"}, [1.5, None, "ä"]], ids=ascii)
def test_a_message_is_one_line(value: object) -> None:
    line = rpc.encode(value)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == value


def test_ids_of_different_types_are_different() -> None:
    ids = [rpc.id_of({"id": one}) for one in (1, "1", True, None, [1])]

    assert ids == [("number", 1), ("text", "1"), None, None, None]
    assert rpc.id_of({"requestId": 1}, "requestId") == ids[0]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"id": 1, "result": {}}, True),
        ({"id": 1, "error": {}}, True),
        ({"id": 1, "method": "ping"}, False),
        ({"id": 1, "method": "ping", "result": {}}, False),
        ([], False),
        ("result", False),
    ],
)
def test_a_response_has_a_result_or_an_error_and_no_method(message: object, expected: bool) -> None:
    assert rpc.is_response(message) is expected
