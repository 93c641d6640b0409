"""A store that runs other code at chosen steps, to make races deterministic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import event

from onceward.hub.blobs import BlobStore
from onceward.hub.db.engine import Database
from onceward.hub.db.raw_sql import RawStatement

Act = Callable[[], object]


class InterceptedStore:
    """A blob store that runs `before_<method>` and `after_<method>` once, at the first call of that method.

    `inside_lock` and `outside_lock` run when the lock has just been entered and left.
    """

    def __init__(self, store: BlobStore, points: dict[str, Act]) -> None:
        self._store = store
        self._points = points

    @contextmanager
    def lock(self) -> Iterator[None]:
        with self._store.lock():
            self._reach("inside_lock")
            yield
        self._reach("outside_lock")

    @contextmanager
    def lock_shared(self) -> Iterator[None]:
        with self._store.lock_shared():
            self._reach("inside_lock")
            yield
        self._reach("outside_lock")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def stepped(*arguments: object, **named: object) -> object:
            self._reach(f"before_{name}")
            result = found(*arguments, **named)
            self._reach(f"after_{name}")
            return result

        return stepped

    def _reach(self, point: str) -> None:
        if act := self._points.pop(point, None):
            act()


class StoreWithout:
    """A store that skips one of its steps: `ensure` or `lock`."""

    def __init__(self, store: BlobStore, step: str) -> None:
        self._store = store
        self._step = step

    @contextmanager
    def lock(self) -> Iterator[None]:
        if self._step == "lock":
            yield
            return
        with self._store.lock():
            yield

    @contextmanager
    def lock_shared(self) -> Iterator[None]:
        if self._step == "lock":
            yield
            return
        with self._store.lock_shared():
            yield

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: None) if name == self._step else getattr(self._store, name)


def intercepted(store: BlobStore, **points: Act) -> BlobStore:
    return cast("BlobStore", InterceptedStore(store, points))


def without(store: BlobStore, step: str) -> BlobStore:
    return cast("BlobStore", StoreWithout(store, step))


@contextmanager
def at_statement(database: Database, words: str, act: Act, *, point: str = "after") -> Iterator[None]:
    """Run an action once, right before or after the first statement that contains these words."""
    waiting = [act]

    def on_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if waiting and words in statement:
            waiting.pop()()

    def observed(run: Callable[..., Any]) -> Callable[..., Any]:
        def observed_run(self: RawStatement, *given: Any) -> Any:
            if point == "before":
                on_statement(None, None, self.sql)
            found = run(self, *given)
            if point == "after":
                on_statement(None, None, self.sql)
            return found

        return observed_run

    name = f"{point}_cursor_execute"
    event.listen(database.engine, name, on_statement)
    ways = {way: getattr(RawStatement, way) for way in ("rows_on", "count", "new_id", "each")}
    for way, run in ways.items():
        setattr(RawStatement, way, observed(run))
    try:
        yield
    finally:
        event.remove(database.engine, name, on_statement)
        for way, run in ways.items():
            setattr(RawStatement, way, run)
    assert not waiting, f"nobody said {words!r}"
