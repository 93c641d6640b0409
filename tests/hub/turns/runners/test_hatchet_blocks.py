"""The blocks of the guide about Hatchet, whose engine is in no package registry: the worker runs until it asks for one."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.turns.runners.hatchet_token import TOKEN
from tests.hub.turns.turn_harness import echo
from tests.unrun_blocks import execute, unrun_block
from tests.waiting import SECONDS_MAX, soon

from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.ledger.open import open_ledger
from onceward.turns import Brain, Engine, TurnGateway, UserMessage, get_turn

with warnings.catch_warnings():
    # The SDK's: it calls what its own dependencies have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import onceward.turns.runners.hatchet  # noqa: F401


@pytest.fixture
def names(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that a reader has."""
    monkeypatch.setenv("HATCHET_CLIENT_TOKEN", TOKEN)
    monkeypatch.setenv("HATCHET_CLIENT_TLS_STRATEGY", "none")
    monkeypatch.setenv("HATCHET_CLIENT_TENACITY", '{"max_attempts": 1}')
    (tmp_path / "hub.db").write_bytes(sqlite_template.read_bytes())
    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database, open_ledger("memory:") as ledger:
        migrate(database)
        brain = Brain(echo)
        engine = Engine(database, ledger, brain)
        yield {"database": database, "brain": brain, "engine": engine, "TurnGateway": TurnGateway}


@pytest.fixture
def _signals() -> Iterator[None]:
    """Restore the signal handlers, which a worker replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_the_worker_of_the_guide_starts_and_stops_when_it_cannot_register(
    names: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    block = unrun_block("docs/guides/turns-runners.md", "hatchet.worker(")

    with pytest.raises(SystemExit):
        execute(block, names | {"__name__": "__main__"})
    loop = asyncio.get_event_loop()  # the worker's own
    loop.set_exception_handler(lambda _loop, _context: None)  # the exit is in one of its tasks, too
    loop.close()
    asyncio.set_event_loop(None)

    assert "failed to register workflow" in caplog.text


def test_the_processes_of_the_guide_answer_while_hatchet_is_down(names: dict[str, Any]) -> None:
    """The sweep that the worker runs answers a message that the other process received."""
    execute(unrun_block("docs/guides/turns-runners.md", "hatchet.worker("), names)
    execute(unrun_block("docs/guides/turns-runners.md", "HatchetRunner"), names)
    swept: Callable[[], AsyncIterator[None]] = names["swept"]

    async def story() -> str:
        turn_id: str = (await names["gateway"].receive_message(UserMessage(content="hello"))).turn_id
        await asyncio.wait_for(names["runner"].idle(), SECONDS_MAX)
        lifespan = swept()
        await anext(lifespan)
        await soon(lambda: answer_of(turn_id) is not None)
        assert [item async for item in lifespan] == []
        await names["runner"].stop()
        return str(answer_of(turn_id))

    def answer_of(turn_id: str) -> object:
        with names["database"].read() as tx:
            return get_turn(tx, "local", turn_id).answer

    assert asyncio.run(story()) == "You said: hello"
