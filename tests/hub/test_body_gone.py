"""A client that loses patience before its request has arrived. That is its right, and no failure of the hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI
from tests.hub.asking import JSON, Answered, request

from onceward.http.wire import Message
from onceward.hub import problems
from onceward.hub.body import Sent, StrictRoute


class Note(Sent):
    title: str


def test_a_client_that_is_gone_before_its_body_came_is_no_failure_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
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
    answered = Answered()

    async def receive() -> Message:
        return next(arriving)

    async def send(message: Message) -> None:
        answered.messages.append(message)

    with caplog.at_level(logging.WARNING):
        asyncio.run(app(request("POST", "/notes", JSON), receive, send))

    assert (answered.status, answered.json["detail"]) == (400, "the request ended before its end")
    assert (handled, caplog.records) == ([], [])
