from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.http.client.intents_process import INTENT
from tests.servers.scripted_http import Hold, ScriptedResponse, scripted

from onceward import errors
from onceward.http.client import Intents
from onceward.testing import PinnedClock

REPOSITORY = Path(__file__).parents[3]
DAY = 24 * 3600.0


@contextmanager
def client_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A client process that has reported that it is ready."""
    command = [sys.executable, "-m", "tests.http.client.intents_process", *map(str, arguments)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=-1, stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def send_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_intent_keeps_its_key_until_it_is_done(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents.db")
    first = intents.key_for("charge order 42")
    again = Intents(tmp_path / "intents.db").key_for("charge order 42")
    other = intents.key_for("charge order 43")
    intents.done("charge order 42")
    new_key = intents.key_for("charge order 42")

    assert uuid.UUID(first).version == 4
    assert first == again
    assert len({first, other, new_key}) == 3


def test_an_intent_is_done_when_its_block_ends_without_an_exception(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents.db")
    with pytest.raises(TimeoutError), intents.until_done("charge order 42") as first:
        raise TimeoutError
    with intents.until_done("charge order 42") as second:
        assert [one.key for one in intents.unfinished()] == [second]

    assert first == second
    assert intents.unfinished() == []


def test_a_late_caller_does_not_finish_an_intent_that_another_started_again(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents.db")
    with intents.until_done("charge order 42"):
        intents.done("charge order 42")
        new_key = intents.key_for("charge order 42")

    assert intents.key_for("charge order 42") == new_key


def test_done_may_be_called_twice_and_for_unknown_intents(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents.db")
    intents.done("never begun")
    intents.key_for("begun")
    intents.done("begun")
    intents.done("begun")

    assert intents.unfinished() == []


def test_concurrent_threads_get_one_key(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents.db")
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: intents.key_for("charge order 42"), range(32)))

    assert len(keys) == 1


def test_concurrent_processes_get_one_key(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(client_process(tmp_path / "intents.db")) for _ in range(4)]
        for process in processes:
            send_go(process)
        keys = {read_line(process) for process in processes}

    assert len(keys) == 1
    assert uuid.UUID(keys.pop())


def test_a_client_killed_during_its_request_continues_with_the_same_key(tmp_path: Path) -> None:
    file = tmp_path / "intents.db"
    with scripted(Hold(), ScriptedResponse(503), ScriptedResponse(201), ScriptedResponse(201)) as server:
        with client_process(file, server.url) as killed:
            send_go(killed)
            server.wait_for_request()
            killed.kill()
        (unfinished,) = Intents(file).unfinished()
        with client_process(file, server.url) as restarted:
            send_go(restarted)
            key = read_line(restarted)
            assert restarted.wait(30) == 0
        with client_process(file, server.url) as later:
            send_go(later)
            assert read_line(later) != key

    assert unfinished.intent == INTENT
    assert server.keys[:3] == [unfinished.key] * 3
    assert server.keys[3] != key == unfinished.key


def test_an_intent_that_the_server_may_have_forgotten_is_in_doubt_until_it_is_done(tmp_path: Path) -> None:
    clock = PinnedClock()
    intents = Intents(tmp_path / "intents.db", clock=clock)
    key = intents.key_for("charge order 42")
    clock.advance(DAY)
    at_the_end = intents.key_for("charge order 42")
    clock.advance(0.001)

    with pytest.raises(errors.InDoubt, match=key[:20]):
        intents.key_for("charge order 42")
    with pytest.raises(errors.InDoubt):
        intents.key_for("charge order 42")
    intents.done("charge order 42")
    new_key = intents.key_for("charge order 42")

    assert at_the_end == key != new_key


def test_unfinished_intents_are_listed_oldest_first(tmp_path: Path) -> None:
    clock = PinnedClock()
    intents = Intents(tmp_path / "intents.db", clock=clock)
    keys = []
    for name in ("b", "a", "ü"):
        keys.append(intents.key_for(name))
        clock.advance(1)

    listed = intents.unfinished()

    assert [(one.intent, one.key) for one in listed] == list(zip(["b", "a", "ü"], keys, strict=True))
    moments = [one.created_at for one in listed]
    began = datetime.fromtimestamp(clock() / 1_000_000, UTC)
    assert began - moments[0] == timedelta(seconds=3)
    assert moments[1] - moments[0] == timedelta(seconds=1)


def test_purge_deletes_intents_by_age(tmp_path: Path) -> None:
    clock = PinnedClock()
    intents = Intents(tmp_path / "intents.db", clock=clock)
    intents.key_for("old")
    clock.advance(7 * DAY)
    intents.key_for("new")

    assert intents.purge(8 * DAY) == 0
    assert intents.purge(DAY) == 1
    assert [one.intent for one in intents.unfinished()] == ["new"]


@pytest.mark.parametrize("intent", ["", "x" * 1025, "nul\x00", "\ud800", 42, None])
def test_an_intent_must_be_text(tmp_path: Path, intent: str) -> None:
    with pytest.raises(errors.InvalidKey):
        Intents(tmp_path / "intents.db").key_for(intent)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_intents_are_not_kept_in_memory(path: str) -> None:
    with pytest.raises(errors.InvalidOption):
        Intents(path)


def test_a_file_that_cannot_be_used_raises_store_unavailable(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to look at " * 20)

    with pytest.raises(errors.StoreUnavailable, match="no-folder"):
        Intents(tmp_path / "no-folder" / "intents.db").key_for("x")
    with pytest.raises(errors.StoreUnavailable, match="not a database"):
        Intents(tmp_path / "text").key_for("x")
