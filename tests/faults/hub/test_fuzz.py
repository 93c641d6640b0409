"""Fuzzing with the hub's own OpenAPI document: never a 5xx, and every response is as described."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks
from tests.faults.hub.conftest import Site, Sites
from tests.faults.hub_database import at_rest, written
from tests.waiting import until

STREAM = "/api/v1/events/stream"
EXAMPLES = 50
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# Few, so that they meet again: replays, and other requests under a used key.
KEYS = st.one_of(st.none(), st.sampled_from(["a", "b"]), st.uuids().map(str))


class Described:
    """A hub as its own description shows it, with one topic."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.topic = site.ada.topic("fuzz")
        self.session = requests.Session()
        self.headers = {"Authorization": f"Bearer {site.token}"}
        # A stream does not end; it has tests of its own.
        document = schemathesis.openapi.from_url(f"{site.hub.url}/openapi.json").exclude(path=STREAM)
        self.operations: list[Any] = [operation(found) for found in document.get_all_operations()]

    def send_request(self, data: st.DataObject, mode: GenerationMode) -> tuple[Any, Any]:
        """Send one request of an operation, and check the response against the description."""
        chosen = data.draw(st.sampled_from(self.operations), label="operation")
        case = data.draw(chosen.as_strategy(generation_mode=mode))
        if "topic_id" in (case.path_parameters or {}) and data.draw(st.booleans(), label="a topic that is there"):
            case.path_parameters["topic_id"] = self.topic
        headers = dict(self.headers)
        if (key := data.draw(KEYS, label="key")) is not None:
            headers["Idempotency-Key"] = key
        answer = case.call(session=self.session, headers=headers)
        case.validate_response(answer, checks=CHECKS)
        return case, answer


def operation(found: Any) -> Any:
    """Return the operation, or raise if the document describes it incorrectly."""
    return found.ok()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def described(request: pytest.FixtureRequest, sites: Sites) -> Iterator[Described]:
    described = Described(sites[request.param])
    yield described
    described.session.close()


@fuzzed
@given(data=st.data())
def test_a_described_request_gets_a_described_response(described: Described, data: st.DataObject) -> None:
    case, answer = described.send_request(data, GenerationMode.POSITIVE)

    if answer.status_code >= 400 and case.method.upper() != "HEAD":
        assert json.loads(answer.content)["status"] == answer.status_code


@fuzzed
@given(data=st.data())
def test_an_undescribed_request_gets_a_described_refusal(described: Described, data: st.DataObject) -> None:
    database = described.site.database
    until(lambda: at_rest(database), "turns of earlier requests never end")
    before = written(database)

    _, answer = described.send_request(data, GenerationMode.NEGATIVE)

    if answer.status_code >= 400:
        assert written(database) == before
