"""`hub.chat` against a hub: messages are answered once, and followed over connections that break."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.hub.chat_hub import Fifo
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.connection_breaking_proxy import ConnectionBreakingProxy
from tests.hub.client.test_reference import public, words
from tests.hub.hub_process import running_hub

from onceward import errors
from onceward.hub.client import (
    BlockingChat,
    BlockingHub,
    Chat,
    ChatAnswer,
    ChatEvent,
    ChatMessage,
    Hub,
    Saying,
    ToolSeen,
    TurnSeen,
)
from onceward.hub.client.chat import followed


@dataclass(frozen=True, slots=True)
class ChatHub:
    """A hub with the brain of these tests."""

    url: str
    folder: Path

    def fifo(self) -> Fifo:
        path = self.folder / f"fifo-{uuid4().hex}"
        os.mkfifo(path)
        return Fifo(path, os.open(path, os.O_RDWR))

    def paid(self) -> list[str]:
        return (self.folder / "outside").read_text().splitlines()


@pytest.fixture(scope="module")
def chat_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHub]:
    folder = tmp_path_factory.mktemp("chat_hub")
    brain = ("--brain", "tests.hub.scripted_brain:brain")
    env = {"OUTSIDE": str(folder / "outside"), "ONCEWARD_TURNS__MAX_ATTEMPTS": "2"}
    with running_hub(data_dir=folder / "data", args=brain, env=env) as hub:
        yield ChatHub(hub.url, folder)


@pytest.fixture
def session() -> str:
    return uuid4().hex


def test_a_message_is_answered_and_its_turn_can_be_read(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        text = f"refund order-{session}"
        done = await hub.chat.say(text, wait_seconds=20, session_key=session, metadata={"from": "a test"})
        turn = await hub.chat.turn(done.turn_id)

        assert (done.status, done.response, done.error) == ("complete", "answered: done", None)
        assert [(one.content, one.metadata) for one in done.messages] == [(text, {"from": "a test"})]
        assert (turn.status, turn.session_key, turn.messages) == ("complete", session, done.messages)
        (call,) = turn.tools
        assert (call.tool, call.effect, call.status) == ("refund", "irreversible", "done")
        assert await hub.chat.finished(done.turn_id) == done
        with pytest.raises(errors.NotFound):
            await hub.chat.turn("nobody")
        with pytest.raises(errors.InvalidInput) as refused:
            await hub.chat.say("x", tenant_id="a b")
        assert refused.value.fields[0][0].endswith("tenant_id")

    run_with_hub(chat_hub.url, use)


def test_the_same_words_are_two_messages_and_the_same_key_is_one(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        answers = [await hub.chat.say("hello", wait_seconds=20, session_key=session) for _ in range(2)]
        keyed = [
            await hub.chat.say("hello", wait_seconds=20, session_key=session, idempotency_key=session) for _ in range(2)
        ]
        by_id = [
            await hub.chat.say("hello", wait_seconds=20, session_key=session, message_id=session) for _ in range(2)
        ]

        assert len({one.turn_id for one in answers}) == 2
        assert keyed[0] == keyed[1]
        assert by_id[0].turn_id == by_id[1].turn_id
        with pytest.raises(errors.KeyReused):
            await hub.chat.say("something else", session_key=session, idempotency_key=session)

    run_with_hub(chat_hub.url, use)


def test_without_a_wait_it_is_processing_and_the_superseding_turn_answers(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        fifo = chat_hub.fifo()
        first = await hub.chat.say(f"hold {fifo}", session_key=session)
        soon = await hub.chat.finished(first.turn_id, 0.05)
        following = asyncio.create_task(hub.chat.finished(first.turn_id))
        second = await hub.chat.say("and this", session_key=session)
        fifo.release()
        answer = await following

        assert (first.status, soon.status, second.status) == ("processing", "processing", "processing")
        assert (answer.status, answer.turn_id) == ("complete", second.turn_id)
        assert [one.content for one in answer.messages] == [f"hold {fifo}", "and this"]
        old = await hub.chat.turn(first.turn_id)
        assert (old.status, old.superseded_by) == ("superseded", second.turn_id)

    run_with_hub(chat_hub.url, use)


def test_a_lost_response_is_requested_again_and_no_message_is_sent_twice(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        async with ConnectionBreakingProxy(chat_hub.url) as proxy, Hub(proxy.url) as far:
            proxy.lose_answers = 2
            done = await far.chat.say(f"refund order-{session}", wait_seconds=20, session_key=session)
            assert proxy.lose_answers == 0

        assert (done.status, chat_hub.paid().count(f"order-{session}")) == ("complete", 1)
        assert len((await hub.chat.turn(done.turn_id)).messages) == 1

    run_with_hub(chat_hub.url, use)


def test_a_stream_gives_the_answer_and_the_same_key_gives_it_again(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        text = f"say one\nrefund order-{session}\nsay zw\u00f6lf"
        received = [event async for event in hub.chat.stream(text, session_key=session, idempotency_key=session)]
        again = [event async for event in hub.chat.stream(text, session_key=session, idempotency_key=session)]
        turn_id = received[-1].data["turn_id"]

        assert [event.name for event in received] == ["delta", "tool", "delta", "done"]
        assert [event.id for event in received] == ["1.1", "1.2", "1.3", "1.4"]
        assert "".join(event.text for event in received) == "onezw\u00f6lf"
        assert [event.is_last for event in received] == [False, False, False, True]
        assert again == received
        assert [event async for event in hub.chat.follow(turn_id)] == received
        assert [event async for event in hub.chat.follow(turn_id, after="1.2")] == received[2:]
        with pytest.raises(errors.KeyReused):
            await anext(hub.chat.stream("something else", session_key=session, idempotency_key=session))
        with pytest.raises(errors.NotFound):
            await anext(hub.chat.follow("nobody"))

    run_with_hub(chat_hub.url, use)


def test_a_cut_stream_resumes_after_the_last_event(chat_hub: ChatHub, session: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        fifo = chat_hub.fifo()
        async with ConnectionBreakingProxy(chat_hub.url) as proxy, Hub(proxy.url) as far:
            stream = far.chat.stream(f"say one\nsay two\nhold {fifo}\nsay three", session_key=session)
            received = [await anext(stream), await anext(stream)]
            rest = asyncio.create_task(_rest(stream))
            for cuts in (1, 2):
                await proxy.cut()
                while proxy.connections <= cuts:
                    await asyncio.wait({rest}, timeout=0.01)
            fifo.release()
            received += await rest

        assert [event.text for event in received] == ["one", "two", "three", ""]
        assert received == [event async for event in hub.chat.follow(received[-1].data["turn_id"])]

    run_with_hub(chat_hub.url, use)


async def _rest(stream: AsyncGenerator[ChatEvent, None]) -> list[ChatEvent]:
    return [event async for event in stream]


def test_a_follower_of_an_answer_that_restarts_gets_an_event_and_the_new_answer(
    chat_hub: ChatHub, session: str, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        fifo, broken = chat_hub.fifo(), chat_hub.folder / "broken"
        broken.touch()
        stream = hub.chat.stream(f"say one\nhold {fifo}\nfail", session_key=session)
        received = [await anext(stream)]
        fifo.release()
        received += await _rest(stream)
        broken.unlink()
        failed = await hub.chat.finished(received[-1].data["turn_id"])

        assert [(event.name, event.is_last) for event in received] == [
            ("delta", False), ("interrupted", False), ("delta", False), ("interrupted", True),
        ]  # fmt: skip
        assert received[-1].data["error"] == "RuntimeError: told to fail"
        assert (failed.status, failed.error) == ("failed", "RuntimeError: told to fail")

    run_with_hub(chat_hub.url, use)


def test_following_after_an_event_of_another_answer_starts_with_an_interruption(
    chat_hub: ChatHub, run_with_hub: RunWithHub, session: str
) -> None:
    async def use(hub: Hub) -> None:
        done = await hub.chat.say("say one", wait_seconds=20, session_key=session)
        received = await _rest(hub.chat.follow(done.turn_id, after="0.7"))

        assert [(event.id, event.name) for event in received] == [
            ("0.7", "interrupted"),
            ("1.1", "delta"),
            ("1.2", "done"),
        ]

    run_with_hub(chat_hub.url, use)


def test_an_event_in_pieces_is_joined_and_an_invalid_one_is_refused() -> None:
    large = "\u2028" + "x" * (1024 * 1024)
    bodies = [
        b'retry: 1000\n\nid: 1.1\nevent: delta\ndata: {"text": "%s"}\n\n:\n\n' % large.encode(),
        b'id: 1.2\nevent: done\ndata: {"status": "complete"}\n\n',
        b"event: delta\ndata: {}\n\n",
    ]
    asked: list[str | None] = []

    async def connect(last: str | None, _turn_id: str | None) -> httpx.Response:
        asked.append(last)
        return httpx.Response(200, content=_pieces(bodies.pop(0)))

    async def main() -> list[ChatEvent]:
        received = [event async for event in followed(connect, None)]
        with pytest.raises(errors.UnexpectedAnswer, match="malformed event of a turn"):
            await anext(followed(connect, None))
        return received

    assert [(event.name, event.text) for event in asyncio.run(main())] == [("delta", large), ("done", "")]
    assert asked == [None, "1.1", None]


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), 65_537):
        yield body[start : start + 65_537]


def test_everything_works_with_the_blocking_client_too(chat_hub: ChatHub, session: str) -> None:
    with BlockingHub(chat_hub.url) as hub:
        done = hub.chat.say("hello", wait_seconds=20, session_key=session)
        received = list(hub.chat.stream("say one", session_key=session))

        assert done.response == "answered: hello"
        assert hub.chat.turn(done.turn_id).response == done.response
        assert hub.chat.finished(done.turn_id) == done
        assert [event.name for event in received] == ["delta", "done"]
        assert list(hub.chat.follow(received[-1].data["turn_id"], after="1.1")) == received[1:]
    assert public(BlockingChat) == public(Chat)


def test_every_method_argument_and_field_is_in_the_reference() -> None:
    arguments = {name for verb in public(Chat) for name in inspect.signature(getattr(Chat, verb)).parameters}
    kinds = (ChatAnswer, ChatEvent, ChatMessage, ToolSeen, TurnSeen)

    assert arguments - {"self", "about"} | {*Saying.__annotations__} | public(Chat) <= words()
    assert {field.name for kind in kinds for field in fields(kind)} | {"text", "is_last"} <= words()
