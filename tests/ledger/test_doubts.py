"""Lapsed claims go in doubt in the background, with a log line and one call of `on_doubt`."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest
from tests.backends import Opener
from tests.store.blockable_store import BlockableStore
from tests.waiting import until

from onceward import Ledger
from onceward.core.claim import Claim, Entry, InDoubt, Move, Status, Verb, Write, WriteResult
from onceward.core.outcome import Outcome
from onceward.errors import InvalidOption, StoreUnavailable
from onceward.ledger.doubts import doubt_fields
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

SOON = 0.002
LEASE = 30.0


class RecordedDoubts:
    """An `on_doubt` that records its calls and their threads."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.threads: set[str] = set()

    def __call__(self, entry: Entry) -> None:
        self.threads.add(threading.current_thread().name)
        self.entries.append(entry)

    @property
    def keys(self) -> list[str]:
        return [entry.key for entry in self.entries]


@pytest.fixture
def recorded() -> RecordedDoubts:
    return RecordedDoubts()


@pytest.fixture
def store(clock: PinnedClock) -> BlockableStore:
    return BlockableStore(clock)


@pytest.fixture
def ledger(store: BlockableStore, recorded: RecordedDoubts) -> Iterator[Ledger]:
    with closing(Ledger(store, lease_seconds=LEASE, on_doubt=recorded)) as ledger:
        yield ledger


def held(ledger: Ledger, key: str = "k", *, repeatable: bool = False) -> Claim:
    claim = ledger.blocking.begin("call", key, repeatable=repeatable)
    assert isinstance(claim, Claim)
    return claim


def status(ledger: Ledger, key: str = "k") -> Status:
    entry = ledger.blocking.read("call", key)
    assert entry is not None
    return entry.status


def test_a_lapsed_claim_goes_in_doubt_in_the_background_and_a_late_settle_still_counts(
    make_store: Opener, clock: PinnedClock, recorded: RecordedDoubts
) -> None:
    with closing(Ledger(make_store(clock), lease_seconds=LEASE, on_doubt=recorded)) as ledger:
        claim = held(ledger)
        held(ledger, "may be repeated", repeatable=True)
        clock.advance(LEASE - 1)
        held(ledger, "live")
        clock.advance(1)

        ledger.purge_every(SOON)
        until(lambda: recorded.entries, "nobody heard of the doubt")

        assert status(ledger) is Status.IN_DOUBT
        assert (status(ledger, "live"), status(ledger, "may be repeated")) == (Status.IN_PROGRESS, Status.IN_PROGRESS)
        assert ledger.blocking.settle(claim, Outcome(body=b"late"))
        assert status(ledger) is Status.COMPLETED
    assert recorded.keys == ["k"]
    assert (recorded.entries[0].status, recorded.entries[0].version) == (Status.IN_DOUBT, claim.version)


def test_a_backlog_of_doubts_is_processed_page_by_page_without_pauses(
    store: BlockableStore, ledger: Ledger, clock: PinnedClock, recorded: RecordedDoubts
) -> None:
    for number in range(501):
        held(ledger, f"k{number}")
    clock.advance(LEASE)

    ledger.purge_every(3600)
    until(lambda: len(recorded.entries) == 501, "the second page never came")

    pages = [batch for batch in store.batches if isinstance(batch[0], Move)]
    assert [len(page) for page in pages] == [500, 1]


def test_a_holder_that_renews_while_its_page_is_in_flight_keeps_its_claim(
    store: BlockableStore, ledger: Ledger, clock: PinnedClock, recorded: RecordedDoubts
) -> None:
    claim = held(ledger)
    clock.advance(LEASE)

    def renew(writes: Sequence[Write]) -> None:
        if isinstance(writes[0], Move) and writes[0].verb is Verb.ABANDON:
            lease = Move(claim.entry.scope, "k", "renewal", Verb.RENEW, claim.version, lease=1)
            assert MemoryStore.commit(store, [lease])[0].applied

    store.spoil = renew
    assert ledger.blocking.doubt_lapsed() == 0

    assert status(ledger) is Status.IN_PROGRESS
    assert recorded.entries == []


def test_every_way_into_doubt_is_reported_once(ledger: Ledger, clock: PinnedClock, recorded: RecordedDoubts) -> None:
    held(ledger, "asked for")
    held(ledger, "abandoned")
    held(ledger, "lapsed")
    ledger.blocking.doubt(held(ledger, "given up"), "the connection broke")
    ledger.blocking.abandon("call", "forced", held(ledger, "forced").version, note="by ann", force=True)
    clock.advance(LEASE)
    for _ in range(3):
        assert isinstance(ledger.blocking.begin("call", "asked for", repeatable=False), InDoubt)
    version = getattr(ledger.blocking.read("call", "abandoned"), "version", 0)
    ledger.blocking.abandon("call", "abandoned", version, note="by ann")
    assert [ledger.blocking.doubt_lapsed() for _ in range(3)] == [1, 0, 0]
    ledger.close()

    assert sorted(recorded.keys) == ["abandoned", "asked for", "forced", "given up", "lapsed"]
    assert recorded.threads == {"onceward-doubts"}


def test_of_several_processes_one_reports_the_doubt(make_store: Opener, clock: PinnedClock) -> None:
    all_heard = [RecordedDoubts() for _ in range(3)]
    ledgers = [Ledger(make_store(clock), lease_seconds=LEASE, on_doubt=recorded) for recorded in all_heard]
    for number in range(20):
        held(ledgers[0], f"k{number}")
    clock.advance(LEASE)

    for ledger in ledgers:
        ledger.purge_every(SOON)
    until(lambda: sum(len(recorded.entries) for recorded in all_heard) >= 20)
    for ledger in ledgers:
        ledger.close()

    assert sorted(key for recorded in all_heard for key in recorded.keys) == sorted(
        f"k{number}" for number in range(20)
    )


@pytest.mark.parametrize("way", ["background", "begin", "doubt"])
def test_a_doubt_whose_result_was_lost_is_reported_once(
    store: BlockableStore, ledger: Ledger, clock: PinnedClock, recorded: RecordedDoubts, way: str
) -> None:
    claim = held(ledger)
    lost: list[int] = []

    def lose(results: list[WriteResult]) -> list[WriteResult]:
        if not lost:
            lost.append(1)
            raise StoreUnavailable("the answer was lost")
        return results

    store.results = lose
    if way == "doubt":
        assert ledger.blocking.doubt(claim, "why")
    else:
        clock.advance(LEASE)
    if way == "begin":
        assert isinstance(ledger.blocking.begin("call", "k", repeatable=False), InDoubt)
    if way == "background":
        with pytest.raises(StoreUnavailable):
            ledger.blocking.doubt_lapsed()
        assert recorded.entries == []
        assert [ledger.blocking.doubt_lapsed() for _ in range(2)] == [1, 0]
    ledger.close()

    assert (lost, recorded.keys) == ([1], ["k"])


def test_a_doubt_found_by_a_cancelled_begin_is_reported(
    store: BlockableStore, ledger: Ledger, clock: PinnedClock, recorded: RecordedDoubts
) -> None:
    held(ledger)
    clock.advance(LEASE)

    async def cancelled() -> None:
        store.hold()
        asking = asyncio.create_task(ledger.begin("call", "k", repeatable=False))
        for _ in range(2):  # the first claim, and this one
            assert await asyncio.to_thread(store.entered.acquire, timeout=30)
        asking.cancel()
        store.let_go()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    until(lambda: recorded.entries, "nobody heard of the doubt")
    assert recorded.keys == ["k"]


def test_a_failing_callback_is_logged_and_changes_nothing(
    store: BlockableStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Entry) -> None:
        raise RuntimeError("no mail today")

    with Ledger(store, lease_seconds=LEASE, on_doubt=fails) as ledger:
        ledger.blocking.doubt(held(ledger, "one"))
        ledger.blocking.doubt(held(ledger, "two"))
        assert status(ledger, "one") is Status.IN_DOUBT

    failed = [record for record in caplog.records if record.getMessage().startswith("on_doubt_failed ")]
    assert [(record.levelname, getattr(record, "key", "")) for record in failed] == [("ERROR", "one"), ("ERROR", "two")]
    assert "no mail today" in failed[0].getMessage()


def test_an_async_callback_is_awaited(store: BlockableStore) -> None:
    keys: list[str] = []

    async def hear(entry: Entry) -> None:
        await asyncio.sleep(0)
        keys.append(entry.key)

    with Ledger(store, on_doubt=hear) as ledger:
        ledger.blocking.doubt(held(ledger))

    assert keys == ["k"]


def test_a_slow_callback_delays_only_close(store: BlockableStore) -> None:
    began, go_on, reported = threading.Event(), threading.Event(), []

    def slow(entry: Entry) -> None:
        began.set()
        assert go_on.wait(30)
        reported.append(entry.key)

    with Ledger(store, on_doubt=slow) as ledger:
        ledger.blocking.doubt(held(ledger, "one"))
        assert began.wait(30)
        ledger.blocking.doubt(held(ledger, "two"))
        assert ledger.blocking.run("other", lambda: 1, effect="idempotent") == 1
        assert asyncio.run(ledger.run("another", lambda: 2, effect="idempotent")) == 2
        go_on.set()

    assert reported == ["one", "two"]


# The parent forks while it reports a doubt, so that its thread does not exist in the child.
_FORK = """
import os, threading
from onceward import open_ledger
parent, telling, forked = os.getpid(), threading.Event(), threading.Event()

def tell(entry):
    print(entry.key, flush=True)
    if os.getpid() == parent:
        telling.set()
        forked.wait(30)

ledger = open_ledger("memory:", on_doubt=tell)

def doubt(key):
    ledger.blocking.doubt(ledger.blocking.begin("call", key, repeatable=False))

doubt("of the parent")
telling.wait(30)
child = os.fork()
if child == 0:
    doubt("of the child")
    ledger.close()
    os._exit(0)
os.waitpid(child, 0)
forked.set()
ledger.close()
"""


def test_a_forked_child_reports_only_its_own_doubts() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.splitlines() == ["of the parent", "of the child"]


def test_a_callback_may_use_the_ledger_and_close_it(store: BlockableStore) -> None:
    closed = threading.Event()

    def look(entry: Entry) -> None:
        opened.blocking.read("call", entry.key)
        opened.close()
        closed.set()

    opened = Ledger(store, on_doubt=look)
    opened.blocking.doubt(held(opened))
    assert closed.wait(30)


# The log line.


def test_the_log_warns_with_the_command_that_ends_the_doubt(
    store: BlockableStore, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(store, namespace="shop") as ledger:
        claim = held(ledger, "it's paid: 42")
        ledger.blocking.doubt(claim, "the connection broke")

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("onceward.ledger", logging.WARNING)
    message = record.getMessage()
    assert message.startswith("claim_in_doubt scope=call ")
    assert f" version={claim.version} note='the connection broke' if_it_happened=`onceward claims " in message
    happened, did_not = re.findall(r"`(.*?)`", message)
    assert (getattr(record, "if_it_happened", ""), getattr(record, "if_it_did_not", "")) == (happened, did_not)
    command = ["onceward", "claims", "resolve", "call", "it's paid: 42", "--version", str(claim.version)]
    rest = ["--namespace", "shop", "--reason", "how you know"]
    assert shlex.split(happened) == [*command, "--committed", *rest]
    assert shlex.split(did_not) == [*command, "--not-committed", *rest]


@pytest.mark.parametrize(
    ("scope", "cut"), [("http:user:ann", True), ("api:t:ann", True), ("call", False), ("tool:t:ann", False)]
)
def test_keys_chosen_by_clients_are_shortened(store: BlockableStore, scope: str, cut: bool) -> None:
    key = "0123456789abcdefghijklmnop"
    with Ledger(store) as ledger:
        claim = ledger.blocking.begin(scope, key, repeatable=False)
    assert isinstance(claim, Claim)

    fields = doubt_fields(claim.entry)

    assert fields["key"] == ("0123456789abcdefghij..." if cut else key)
    assert (key in str(fields)) is not cut


def test_a_key_that_looks_like_an_option_is_quoted_and_control_characters_stay_on_their_line(
    store: BlockableStore, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(store) as ledger:
        ledger.blocking.doubt(held(ledger, "--all"), "one\ntwo")

    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert shlex.split(getattr(record, "if_it_happened", ""))[-3:] == ["--", "call", "--all"]


def test_a_shell_parses_the_suggested_command_correctly(store: BlockableStore) -> None:
    key = "line\none\t'quoted' \\ $HOME `date` ä"
    with Ledger(store) as ledger:
        command = str(doubt_fields(held(ledger, key).entry)["if_it_happened"])
    assert command.isprintable()

    shown = "onceward() { for word; do printf '%s\\0' \"$word\"; done; }; " + command
    done = subprocess.run(["bash", "-c", shown], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})

    assert done.stdout.decode().split("\0")[:4] == ["claims", "resolve", "call", key]


# Opening and closing.


def test_an_async_with_block_closes_the_ledger(store: BlockableStore, recorded: RecordedDoubts) -> None:
    async def work() -> Callable[[], None]:
        async with Ledger(store, on_doubt=recorded) as ledger:
            found = await ledger.begin("call", "k", repeatable=False)
            assert isinstance(found, Claim)
            await ledger.doubt(found)
        assert ledger._dispatcher._closed
        await ledger.aclose()
        return ledger.close

    asyncio.run(work())()
    assert recorded.keys == ["k"]


def test_whole_keys_of_clients_are_logged_only_on_request(
    store: BlockableStore, caplog: pytest.LogCaptureFixture
) -> None:
    key = "0123456789abcdefghij-and-more"
    with closing(Ledger(store, log_keys="whole")) as ledger:
        claim = ledger.blocking.begin("http:user:ann", key, repeatable=False)
        assert isinstance(claim, Claim)
        assert ledger.blocking.doubt(claim)

    (line,) = [record.getMessage() for record in caplog.records if record.msg == "claim_in_doubt"]
    assert f"onceward claims resolve http:user:ann {key} --version {claim.version} --committed" in line
    with pytest.raises(InvalidOption, match="log_keys must be 'short' or 'whole', not 'all'"):
        Ledger(store, log_keys="all")  # type: ignore[arg-type]
