"""An interrupt while a batch is in flight: its writes get an error, and the store stays usable."""

from __future__ import annotations

import asyncio
import sys
from types import CodeType, FrameType

import pytest
from tests.store.blockable_store import begin, block
from tests.store.dispatch.pipelined_store import PipelinedMemoryStore, result_of, run, run_in_thread, write_on
from tests.waiting import soon, until

import onceward.store.dispatch.inflight
import onceward.store.dispatch.pipeline
import onceward.store.dispatch.queue
from onceward import errors
from onceward.core.claim import WriteResult
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.future import StoreFuture

WATCHED = {onceward.store.dispatch.inflight.__file__, onceward.store.dispatch.pipeline.__file__}
# Of the queue what the pipeline calls; the rest is the caller's own step, before anything is sent.
WATCHED_IN_QUEUE = {"first", "take", "gather", "restore"}


@pytest.fixture
def store() -> PipelinedMemoryStore:
    return PipelinedMemoryStore()


def test_a_thread_interrupted_while_completing_a_batch_leaves_the_store_free(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        store.completes = False
        own = asyncio.ensure_future(write_on(batcher, begin("own")))
        await soon(lambda: bool(store.sent_batches))
        store.spoil = interrupt
        with pytest.raises(KeyboardInterrupt), batcher._pipeline.exclusive_store(batcher):
            pass
        with pytest.raises(errors.StoreUnavailable, match="interrupted"):
            await own
        store.spoil = lambda _: None
        store.completes = True
        assert (await write_on(batcher, begin("next"))).applied

    run(main)

    assert store.given_up == 1


@pytest.mark.usefixtures("patient")
def test_an_interrupt_while_results_are_processed_does_not_harm_the_next_batch(
    store: PipelinedMemoryStore, batcher: Batcher
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    async def in_line() -> None:
        await soon(lambda: bool(store.sent_batches))
        tasks.append(loop.create_task(write_on(batcher, begin("behind"))))
        await soon(lambda: bool(batcher.queue) and not batcher._nudged)
        store.spoil = interrupt
        store.sent_batches[0].complete()
        await asyncio.wait(tasks)

    store.completes = False
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(write_on(batcher, begin("first")))]
    waits = loop.create_task(in_line())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(waits)
    store.spoil = lambda _: None
    store.sent_batches[1].complete()
    loop.run_until_complete(waits)

    assert isinstance(tasks[0].exception(), errors.StoreUnavailable)
    assert tasks[1].result().applied
    assert store.given_up == 0, "all of the first had come: there was nothing to give up"
    loop.close()


# An interrupt while an object is freed is reported by Python itself.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("followed", [False, True])
def test_an_interrupt_anywhere_leaves_the_store_usable(followed: bool) -> None:
    """Raised where CPython looks for signals: when a function begins, and when one written in C returns.

    One place is left out: between taking a lock and knowing it nothing can be done, as with every lock.
    """
    point = 1
    while interrupted_at(point, followed=followed):
        point += 1

    assert point > 25


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def follow(store: PipelinedMemoryStore, batcher: Batcher) -> None:
    """Queue writes while the first batch is in flight."""
    store.completes = False
    await turns(2)
    following = batcher.write(begin("following"))
    store.completes = True
    for sent_batch in store.sent_batches:
        sent_batch.complete()
    await result_of(following)


def is_watched(code: CodeType) -> bool:
    in_queue = code.co_filename == onceward.store.dispatch.queue.__file__ and code.co_name in WATCHED_IN_QUEUE
    return in_queue or code.co_filename in WATCHED


def interrupted_at(point: int, *, followed: bool) -> str | None:
    """Return where it was interrupted, or None if there are fewer points. A batch may be followed by another when it is
    completed.
    """
    store = PipelinedMemoryStore()
    batcher = Batcher(store, lambda _: False)
    passed = 0
    where: str | None = None

    def watch(frame: FrameType, event: str, what: object) -> None:
        nonlocal passed, where
        inside = frame if event == "c_return" else frame.f_back
        if where is not None or event not in {"call", "c_return"} or inside is None:
            return
        if not is_watched(inside.f_code) or getattr(what, "__name__", "") == "acquire":
            return
        passed += 1
        if passed == point:
            where = f"{inside.f_code.co_name}:{inside.f_lineno}"
            sys.setprofile(None)
            raise KeyboardInterrupt

    sent: list[StoreFuture[WriteResult]] = []

    async def main() -> None:
        following = asyncio.ensure_future(follow(store, batcher)) if followed else None
        sys.setprofile(watch)
        sent.append(batcher.write(begin("interrupted")))
        await sent[0]
        if following is not None:
            await following

    loop = asyncio.new_event_loop()
    broken: list[str] = []
    loop.set_exception_handler(lambda _, report: broken.append(f"{report['message']}: {report.get('exception')!r}"))
    before = sys.getprofile()
    task = loop.create_task(main())
    try:
        loop.run_until_complete(task)
    except (KeyboardInterrupt, errors.StoreUnavailable):
        pass
    finally:
        sys.setprofile(before)
    if where is None:
        assert len(store.sizes) + len(store.batches) == 1 + followed
    else:
        loop.run_until_complete(turns(10))  # what was interrupted does not come up again
        assert [report for report in broken if "KeyboardInterrupt" not in report] == [], where
        # Nothing of it is left on its way, to be taken for the answers to something else; a slow loop's thread may be at it.
        until(lambda: bool(store.given_up) or all(sent_batch.received for sent_batch in store.sent_batches))
        thread, results = run_in_thread(lambda: block(batcher.write(begin("other"))))
        thread.join(3)
        assert results, where
        assert results[0].applied, where
        assert all(one.done for one in sent), where
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    batcher.close()
    return where
