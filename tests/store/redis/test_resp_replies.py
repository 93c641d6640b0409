"""Redis replies as they arrive: in pieces, in part, too many, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from onceward.store.redis.resp import ErrorReply, RedisPipeline

RAW = b"$5\r\nfirst\r\n$0\r\n\r\n-NOSCRIPT no such script\r\n$6\r\na\r\nb\r\n\r\n"
REPLIES = [b"first", b"", "NOSCRIPT no such script", b"a\r\nb\r\n"]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.settimeout(0.2)
    with here, there:
        yield here, there


def sent(here: socket.socket, count: int = len(REPLIES), seconds: float = 0.2) -> RedisPipeline:
    return RedisPipeline(here, [b"."] * count, seconds)


@pytest.mark.parametrize("cut", range(1, len(RAW)))
def test_a_reply_may_be_split_anywhere(ends: tuple[socket.socket, socket.socket], cut: int) -> None:
    here, there = ends
    pipeline = sent(here)
    there.send(RAW[:cut])
    assert not pipeline.poll()
    there.send(RAW[cut:])
    assert pipeline.poll()

    assert pipeline.replies() == REPLIES
    assert [type(reply) is ErrorReply for reply in pipeline.replies()] == [False, False, True, False]
    assert pipeline.must_block


def test_a_reply_may_arrive_byte_by_byte(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    pipeline = sent(here)
    for number in range(len(RAW)):
        there.send(RAW[number : number + 1])
        assert pipeline.poll() == (number == len(RAW) - 1)

    assert pipeline.replies() == REPLIES


def test_a_spurious_wakeup_is_harmless(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    pipeline = sent(here, 1)
    assert not pipeline.poll()
    there.send(b"$2\r\nok\r\n")

    assert pipeline.poll()
    assert pipeline.replies() == [b"ok"]
    assert not pipeline.must_block


@pytest.mark.parametrize(
    "reply", [b":1\r\n", b"*0\r\n", b"+OK\r\n", b"$x\r\n", b"$-1\r\n", b"$2\r\nok\r\n$2\r\nno\r\n"]
)
def test_an_unexpected_reply_ends_the_connection(ends: tuple[socket.socket, socket.socket], reply: bytes) -> None:
    here, there = ends
    pipeline = sent(here, 1)
    there.send(reply)

    assert pipeline.poll()
    with pytest.raises(ConnectionAbortedError):
        pipeline.replies()


def test_a_closed_connection_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    pipeline = sent(here, 1)
    there.send(b"$2\r\n")
    there.close()

    with pytest.raises(ConnectionResetError):
        pipeline.replies()


def test_a_silent_server_times_out_counted_from_the_sending(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, _ = ends
    here.settimeout(20.0)
    pipeline = sent(here, 1, seconds=0.0)
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        pipeline.replies()
    assert time.monotonic() - began < 10


def test_the_rest_of_a_large_batch_is_sent_by_a_blocking_call(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = bytes(100_000)
    pipeline = RedisPipeline(here, [data], 5)
    was_stuck = pipeline.must_block
    came: list[int] = []

    def read_all() -> None:
        while sum(came) < len(data):
            came.append(len(there.recv(1_000_000)))
        there.send(b"$2\r\nok\r\n")

    reader = threading.Thread(target=read_all)
    reader.start()

    assert pipeline.replies() == [b"ok"]
    assert (was_stuck, pipeline.must_block) == (True, False)
    reader.join()


def test_a_failed_send_raises(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    there.close()

    with pytest.raises(BrokenPipeError):
        sent(here)


@pytest.mark.parametrize(
    ("reply", "whole"),
    [
        (b"$1\r\na\r\n", True),
        (b"$1\r\na\r\n$1\r\nb\r\n", False),  # more than was requested: the connection must not be used again
        (b"-ERR no\r\n", False),
        (b"$1\r\n", False),
        (b"+OK\r\n", False),
    ],
)
def test_it_is_whole_when_every_reply_has_arrived_without_an_error(
    ends: tuple[socket.socket, socket.socket], reply: bytes, whole: bool
) -> None:
    here, there = ends
    pipeline = sent(here, 1)
    there.send(reply)
    pipeline.poll()

    assert pipeline.is_whole is whole
