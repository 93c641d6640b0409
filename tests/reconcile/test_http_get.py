"""The verdicts of `http_get` on a real server: each response, each failure, and each limit."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.reconcile.doubts import Doubt
from tests.servers.scripted_http import Cut, Hold, ScriptedResponse, Step, Trickle, bind, head, scripted, url_of

from onceward import open_ledger, verdict
from onceward.errors import InvalidOption
from onceward.reconcile import http_get
from onceward.reconcile.json_request import BODY_BYTES_MAX
from onceward.tools import Toolbox

FINAL_SECONDS = 3600.0


def answer(data: object, status: int = 200, **headers: str) -> ScriptedResponse:
    return ScriptedResponse(status, {"Content-Type": "application/json", **headers}, json.dumps(data).encode())


MISSING = answer({"error": "no such batch"}, 404)


def test_a_found_result_settles_the_key_for_everyone(doubt: Doubt) -> None:
    with scripted(answer({"id": "b1"})) as server:
        first = doubt.run(http_get(server.url + "/orders/{key}"))

    assert first == doubt.run() == {"id": "b1"}
    assert doubt.runs == 1
    assert server.seen[0].path == "/orders/order%204%2F2"
    assert server.seen[0].method == "GET"


def test_a_missing_result_is_final_only_after_the_deadline_of_the_request(doubt: Doubt) -> None:
    with scripted(MISSING, MISSING, MISSING) as server:
        reconcile = http_get(server.url, final_after_seconds=FINAL_SECONDS)
        assert doubt.run(reconcile) == "in-doubt"
        doubt.clock.advance(FINAL_SECONDS - 1)
        assert doubt.run(reconcile) == "in-doubt"
        doubt.clock.advance(1)

        assert doubt.run(reconcile) == "run 2"


def test_the_deadline_counts_from_the_newest_claim(doubt: Doubt) -> None:
    """The claim of the second attempt is young, although the key is old."""
    doubt.clock.advance(FINAL_SECONDS)
    with scripted(MISSING, MISSING) as server:
        reconcile = http_get(server.url, final_after_seconds=FINAL_SECONDS)
        doubt.ledger.blocking.resolve(
            "call", doubt.key, doubt.entry.version, verdict.not_committed(verdict.Final.OPERATOR), note="asked by hand"
        )
        doubt.runs = 0  # the next attempt gets no response either
        with pytest.raises(TimeoutError):
            doubt.run()

        assert doubt.entry.attempt == 2
        assert doubt.run(reconcile) == "in-doubt"


@pytest.mark.parametrize("final_after_seconds", [None, FINAL_SECONDS])
def test_a_missing_result_is_pending_if_it_will_be_final(doubt: Doubt, final_after_seconds: float | None) -> None:
    with scripted(MISSING) as server:
        found = doubt.ask(http_get(server.url, final_after_seconds=final_after_seconds))

    assert found is (verdict.unknown if final_after_seconds is None else verdict.pending)


def test_without_the_time_of_the_store_nothing_is_final(doubt: Doubt) -> None:
    """A hook that is called by hand does not know how old the claim is; the clock of this machine may be wrong."""
    with scripted(MISSING) as server:
        reconcile = http_get(server.url, final_after_seconds=1)

        async def asked() -> verdict.Verdict:
            return await reconcile(doubt.entry)

        assert asyncio.run(asked()) is verdict.unknown


PAGE = {"Content-Type": "text/html"}
NO_EVIDENCE: dict[str, Step] = {
    "moved": answer({}, 301, Location="/elsewhere"),
    "see other": answer({}, 303, Location="/elsewhere"),
    "no content": ScriptedResponse(204, {}, b""),
    "bad request": answer({}, 400),
    "unauthorized": answer({}, 401),
    "forbidden": answer({}, 403),
    "gone": answer({}, 410),
    "too many": answer({}, 429),
    "broken": answer({}, 500),
    "unavailable": answer({}, 503),
    "not json": ScriptedResponse(200, {"Content-Type": "application/json"}, b"{'a': 1}"),
    "not text": ScriptedResponse(200, {"Content-Type": "application/json"}, b"\xff\xfe\x00"),
    "empty": ScriptedResponse(200, {}, b""),
    "a page": ScriptedResponse(200, PAGE, b"{}"),
    "a page of a gateway": ScriptedResponse(404, PAGE, b"<h1>not found</h1>"),
    "too large": answer("x" * BODY_BYTES_MAX),
    "cut": Cut(head("HTTP/1.1 200 OK", "Content-Length: 100") + b"{"),
    "closed": Cut(),
    "not http": Cut(b"220 mail.example.com\r\n"),
}


@pytest.mark.parametrize("name", NO_EVIDENCE)
def test_a_response_that_proves_nothing_leaves_the_key_in_doubt(
    doubt: Doubt, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Long after the deadline: no error of the provider ever means that nothing happened."""
    doubt.clock.advance(2 * FINAL_SECONDS)
    with scripted(NO_EVIDENCE[name], answer({"id": "b1"})) as server:
        reconcile = http_get(server.url, final_after_seconds=FINAL_SECONDS)

        assert doubt.run(reconcile) == "in-doubt"
        assert len(server.seen) == 1
        assert doubt.run(reconcile) == {"id": "b1"}
    assert [record.msg for record in caplog.records if record.name == "onceward.reconcile"] == ["reconcile_unknown"]


@pytest.mark.parametrize(
    "step",
    [Hold(), Hold(head("HTTP/1.1 200 OK", "Content-Length: 9")), Trickle(head("HTTP/1.1 200 OK", "X: y"), b" ")],
    ids=["silent", "no body", "endless"],
)
def test_a_slow_provider_is_given_up_after_the_timeout(doubt: Doubt, step: Step) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    with scripted(step) as server:
        reconcile = http_get(server.url, final_after_seconds=FINAL_SECONDS, timeout_seconds=0.2)
        began = time.monotonic()

        assert doubt.run(reconcile) == "in-doubt"
        assert time.monotonic() - began < 5


def test_a_provider_that_is_down_leaves_the_key_in_doubt(doubt: Doubt) -> None:
    with bind() as sock:  # nobody listens
        assert doubt.run(http_get(url_of(sock), final_after_seconds=FINAL_SECONDS)) == "in-doubt"


FOUND: list[tuple[Any, verdict.Verdict]] = [
    (lambda data: data["state"] == "done", verdict.committed({"state": "done"})),
    (lambda data: data["state"] == "failed", verdict.pending),
    (lambda data: data["state"], verdict.committed("done")),
    (lambda _: verdict.pending, verdict.pending),
    (lambda _: verdict.committed(7), verdict.committed(7)),
    (
        lambda _: verdict.not_committed(verdict.Final.PROVIDER_FINAL),
        verdict.not_committed(verdict.Final.PROVIDER_FINAL),
    ),
    (lambda _: None, verdict.unknown),
    (lambda data: data["status"], verdict.unknown),
    (lambda data: data.state, verdict.unknown),
]


@pytest.mark.parametrize(("found", "expected"), FOUND)
def test_found_decides_what_the_response_means(doubt: Doubt, found: Any, expected: verdict.Verdict) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    with scripted(answer({"state": "done"})) as server:
        assert doubt.ask(http_get(server.url, found=found, final_after_seconds=FINAL_SECONDS)) == expected


def test_found_may_be_async(doubt: Doubt) -> None:
    async def found(data: Any) -> object:
        await asyncio.sleep(0)
        return data["id"]

    with scripted(answer({"id": "b1"})) as server:
        assert doubt.run(http_get(server.url, found=found)) == "b1"


def test_an_accepted_request_is_pending(doubt: Doubt) -> None:
    with scripted(answer({"id": "b1"}, 202)) as server:
        assert doubt.ask(http_get(server.url)) is verdict.pending


@pytest.mark.parametrize(
    ("template", "point", "path"),
    [
        ("/batches/{recovery_point[batch_id]}", {"batch_id": "b/1"}, "/batches/b%2F1"),
        ("/batches/{recovery_point}", "b?1", "/batches/b%3F1"),
        ("/{recovery_point[ids][1]}", {"ids": [5, 6]}, "/6"),
        ("/{key}/{version}/{attempt}?x={{}}", None, "/order%204%2F2/1/1?x={}"),
    ],
)
def test_the_address_contains_fields_of_the_entry(doubt: Doubt, template: str, point: object, path: str) -> None:
    with scripted(answer({})) as server:
        assert doubt.ask(http_get(server.url + template), point) == verdict.committed({})

    assert server.seen[0].path.replace("%7B%7D", "{}") == path


@pytest.mark.parametrize("point", [None, {}, {"batch_id": None}, {"batch_id": ".."}, {"batch_id": ""}, "b1", [1]])
def test_without_a_recovery_point_no_request_is_sent(doubt: Doubt, point: object) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    with scripted(MISSING) as server:
        reconcile = http_get(server.url + "/batches/{recovery_point[batch_id]}", final_after_seconds=FINAL_SECONDS)

        assert doubt.ask(reconcile, point) is verdict.unknown
    assert server.seen == []


def test_the_address_may_be_a_function(doubt: Doubt) -> None:
    with scripted(answer({})) as server:
        reconcile = http_get(lambda entry: f"{server.url}/v{entry.version}", headers=lambda: {"X-Token": "t"})

        assert doubt.run(reconcile) == {}
    assert (server.seen[0].path, server.seen[0].headers["x-token"]) == ("/v1", "t")


def test_a_function_that_fails_leaves_the_key_in_doubt(doubt: Doubt) -> None:
    def address(_: object) -> str:
        raise LookupError("no address")

    assert doubt.run(http_get(address)) == "in-doubt"
    assert doubt.run(http_get(lambda _: None)) == "in-doubt"  # type: ignore[arg-type,return-value]
    assert doubt.run(http_get(lambda _: "no address")) == "in-doubt"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/{key}", {}),
        ("/{key}", {}),
        ("http://host/{key", {}),
        ("http://host/{holder}", {}),
        ("http://host/{key.x}", {}),
        ("http://host/{key[0]}", {}),
        ("http://host/{key!r}", {}),
        ("http://host/{version:03}", {}),
        ("http://host/", {"final_after_seconds": 0}),
        ("http://host/", {"final_after_seconds": "1"}),
        ("http://host/", {"timeout_seconds": 0}),
        ("http://host/", {"found": "id"}),
    ],
)
def test_a_wrong_option_is_refused_at_once(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        http_get(url, **options)


def test_a_tool_and_an_async_call_use_the_same_hook() -> None:
    async def main() -> None:
        with scripted(answer({"id": "b1"}), answer({"id": "b2"})) as server:
            reconcile = http_get(server.url + "/{key}", found=lambda data: data["id"])
            async with open_ledger("memory:") as ledger:

                async def lost() -> str:
                    raise TimeoutError("the answer never came")

                with pytest.raises(TimeoutError):
                    await ledger.run("k", lost, effect="irreversible")
                assert await ledger.run("k", lost, effect="irreversible", reconcile=reconcile) == "b1"

                toolbox = Toolbox()

                @toolbox.tool(effect="irreversible", reconcile=reconcile)
                def submit(order: str) -> str:
                    raise TimeoutError(order)

                called = await toolbox.call("submit", {"order": "42"}, ledger=ledger, turn_group_id="g")
                assert called.result == "b2"

    asyncio.run(main())
