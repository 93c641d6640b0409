"""The client for synchronous code: the same methods, which block instead of being awaited.

The code is not duplicated: the coroutines run on one event loop, in a thread that belongs to the `BlockingHub`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack

from onceward.errors import StoreClosed
from onceward.hub.client.audit import Audit
from onceward.hub.client.chat import Chat
from onceward.hub.client.claims import Claims
from onceward.hub.client.connection import HubOptions
from onceward.hub.client.follow import Following
from onceward.hub.client.hub import Hub
from onceward.hub.client.ingest import Ingest
from onceward.hub.client.storage import Storage
from onceward.hub.client.types import Event

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def _waits(method: Callable[Concatenate[Hub, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[BlockingHub, P], T]:
    def call(self: BlockingHub, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(method(self.hub, *args, **kwargs))

    return functools.update_wrapper(call, method)


def _iterates(
    method: Callable[Concatenate[Hub, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingHub, P], Iterator[T]]:
    def call(self: BlockingHub, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterator(self, method(self.hub, *args, **kwargs))

    return functools.update_wrapper(call, method)


def _iterator(hub: BlockingHub, source: AsyncGenerator[T, None]) -> Iterator[T]:
    try:
        while True:
            yield hub.wait(_next(source))
    except StopAsyncIteration:
        return
    finally:
        with contextlib.suppress(StoreClosed):
            hub.wait(_end(source))


def _follows(
    method: Callable[Concatenate[Hub, P], Following],
) -> Callable[Concatenate[BlockingHub, P], BlockingFollowing]:
    def call(self: BlockingHub, /, *args: P.args, **kwargs: P.kwargs) -> BlockingFollowing:
        return BlockingFollowing(self, method(self.hub, *args, **kwargs))

    return functools.update_wrapper(call, method)


class _Part(Protocol):
    """A part of the blocking client, such as `hub.claims`."""

    hub: BlockingHub


def _of(
    part: Callable[[Hub], S], method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[_Part, P], T]:
    def call(self: _Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.hub.wait(method(part(self.hub.hub), *args, **kwargs))

    return functools.update_wrapper(call, method)


def _each_of(
    part: Callable[[Hub], S], method: Callable[Concatenate[S, P], AsyncGenerator[T, None]]
) -> Callable[Concatenate[_Part, P], Iterator[T]]:
    def call(self: _Part, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _iterator(self.hub, method(part(self.hub.hub), *args, **kwargs))

    return functools.update_wrapper(call, method)


def _audit(hub: Hub) -> Audit:
    return hub.audit


def _chat(hub: Hub) -> Chat:
    return hub.chat


def _claims(hub: Hub) -> Claims:
    return hub.claims


def _ingest(hub: Hub) -> Ingest:
    return hub.ingest


def _storage(hub: Hub) -> Storage:
    return hub.storage


class BlockingAudit:
    """Blocking version of `Audit`. `BlockingHub` creates it as `hub.audit`."""

    def __init__(self, hub: BlockingHub) -> None:
        self.hub = hub

    list = _of(_audit, Audit.list)
    all = _each_of(_audit, Audit.all)


class BlockingChat:
    """Blocking version of `Chat`. `BlockingHub` creates it as `hub.chat`."""

    def __init__(self, hub: BlockingHub) -> None:
        self.hub = hub

    say = _of(_chat, Chat.say)
    turn = _of(_chat, Chat.turn)
    finished = _of(_chat, Chat.finished)
    stream = _each_of(_chat, Chat.stream)
    follow = _each_of(_chat, Chat.follow)


class BlockingClaims:
    """Blocking version of `Claims`. `BlockingHub` creates it as `hub.claims`."""

    def __init__(self, hub: BlockingHub) -> None:
        self.hub = hub

    list = _of(_claims, Claims.list)
    all = _each_of(_claims, Claims.all)
    show = _of(_claims, Claims.show)
    resolve = _of(_claims, Claims.resolve)
    abandon = _of(_claims, Claims.abandon)
    forget = _of(_claims, Claims.forget)
    purge = _of(_claims, Claims.purge)


class BlockingIngest:
    """Blocking version of `Ingest`. `BlockingHub` creates it as `hub.ingest`."""

    def __init__(self, hub: BlockingHub) -> None:
        self.hub = hub

    normalize_telegram = _of(_ingest, Ingest.normalize_telegram)
    normalize_email = _of(_ingest, Ingest.normalize_email)
    insert_entry = _of(_ingest, Ingest.insert_entry)
    insert_entries = _of(_ingest, Ingest.insert_entries)
    policies = _of(_ingest, Ingest.policies)
    put_policy = _of(_ingest, Ingest.put_policy)
    test_mode = _of(_ingest, Ingest.test_mode)
    set_test_mode = _of(_ingest, Ingest.set_test_mode)


class BlockingStorage:
    """Blocking version of `Storage`. `BlockingHub` creates it as `hub.storage`."""

    def __init__(self, hub: BlockingHub) -> None:
        self.hub = hub

    usage = _of(_storage, Storage.usage)
    quota = _of(_storage, Storage.quota)
    gc = _of(_storage, Storage.gc)
    check = _of(_storage, Storage.check)


class BlockingHub:
    """Blocking client of a hub: `with BlockingHub("http://127.0.0.1:8787", token="…") as hub:`.

    It has the methods of `Hub`, which raise the same exceptions. Threads may share it.

    Args:
        url: The URL of the hub, with http or https.
        token: The access token. A hub without tokens accepts requests from its own machine without one.
        options: Timeouts and the transport; see `HubOptions`.

    Attributes:
        hub: The asynchronous client, for coroutines that are passed to `wait`.
        chat: Operations on messages and turns, a `BlockingChat`.
        audit: The audit log, a `BlockingAudit`.
        claims: Operations on claims, a `BlockingClaims`.
        ingest: Operations on ingested entries, a `BlockingIngest`.
        storage: Usage and checks of stored bytes, a `BlockingStorage`.

    Raises:
        InvalidOption: The URL, the token or an option is not valid.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[HubOptions]) -> None:
        self.hub = Hub(url, token, **options)
        self.chat = BlockingChat(self)
        self.audit = BlockingAudit(self)
        self.claims = BlockingClaims(self)
        self.ingest = BlockingIngest(self)
        self.storage = BlockingStorage(self)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._enough = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(ready)), name="onceward-hub-client", daemon=True
        )
        self._thread.start()
        ready.wait()

    async def _live(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        ready.set()
        async with self.hub:
            await self._enough.wait()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop and wait for it. An interrupt cancels it.

        Args:
            coroutine: A coroutine, usually of a method of `hub`.

        Returns:
            The result of the coroutine.

        Raises:
            StoreClosed: The client is closed, or was closed during the call.
        """
        # Under the lock: a coroutine that is scheduled after the loop has ended would never run.
        with self._lock:
            if self._loop is None:
                coroutine.close()
                raise StoreClosed("this client is closed; create a new one")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StoreClosed("this client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close all connections. Calls in progress raise `StoreClosed`."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._enough.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    create_topic = _waits(Hub.create_topic)
    topics = _waits(Hub.topics)
    topic = _waits(Hub.topic)
    post_message = _waits(Hub.post_message)
    messages = _waits(Hub.messages)
    attach = _waits(Hub.attach)
    update_attachment = _waits(Hub.update_attachment)
    find_attachment = _waits(Hub.find_attachment)
    attachments = _waits(Hub.attachments)
    events = _waits(Hub.events)
    all_events = _iterates(Hub.all_events)
    follow = _follows(Hub.follow)
    create_task = _waits(Hub.create_task)
    tasks = _waits(Hub.tasks)
    task = _waits(Hub.task)
    delete_task = _waits(Hub.delete_task)
    attach_file = _waits(Hub.attach_file)
    attach_link = _waits(Hub.attach_link)
    task_attachments = _waits(Hub.task_attachments)
    attachment = _waits(Hub.attachment)
    replace_labels = _waits(Hub.replace_labels)
    download = _waits(Hub.download)
    remove_attachment = _waits(Hub.remove_attachment)
    gc_blobs = _waits(Hub.gc_blobs)
    fsck = _waits(Hub.fsck)
    backfill_spec_attachments = _waits(Hub.backfill_spec_attachments)
    settings = _waits(Hub.settings)
    healthz = _waits(Hub.healthz)
    readyz = _waits(Hub.readyz)


class BlockingFollowing:
    """Blocking version of `Following`: `for event in hub.follow():`. `BlockingHub.follow` creates it."""

    def __init__(self, hub: BlockingHub, following: Following) -> None:
        self._hub = hub
        self._following = following

    @property
    def cursor(self) -> int | None:
        """The position in the log, as in `Following`."""
        return self._following.cursor

    @property
    def log_epoch(self) -> str | None:
        """The identity of the hub's log."""
        return self._following.log_epoch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._hub.wait(self._following.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._hub.wait(self._following.__aenter__())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and close its connection."""
        with contextlib.suppress(StoreClosed):
            self._hub.wait(self._following.aclose())


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


async def _end(source: AsyncGenerator[T, None]) -> None:
    await source.aclose()
