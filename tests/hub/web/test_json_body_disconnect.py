"""A client that disconnects before its request has arrived is not reported as a failure of the hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI
from tests.hub.asgi_client import JSON, AsgiResponse, request

from onceward.http.asgi_types import Message
from onceward.hub.web import problems
from onceward.hub.web.json_body import StrictBody, StrictRoute


class Note(StrictBody):
    title: str


def test_a_client_that_disconnects_before_its_body_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    router = APIRouter(route_class=StrictRoute)
    handled: list[Note] = []

    @router.post("/notes")
    async def create(note: Note) -> None:
        handled.append(note)

    app = FastAPI()
    app.include_router(router)
    problems.install(app)
    arriving: Iterator[Message] = iter(
        [{"type": "http.request", "body": b'{"title"', "more_body": True}, {"type": "http.disconnect"}]
    )
    sent = AsgiResponse()

    async def receive() -> Message:
        return next(arriving)

    async def send(message: Message) -> None:
        sent.messages.append(message)

    with caplog.at_level(logging.WARNING):
        asyncio.run(app(request("POST", "/notes", JSON), receive, send))

    assert (sent.status, sent.json["detail"]) == (400, "the client disconnected before the request was complete")
    assert (handled, caplog.records) == ([], [])
