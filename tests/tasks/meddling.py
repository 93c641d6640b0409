"""A store in which something else happens at chosen moments: what a race does by chance, done on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import event

from onceward.blobs import BlobStore
from onceward.db.engine import Database
from onceward.db.plain import Plain

Act = Callable[[], object]


class Meddling:
    """`before_<method>` and `after_<method>` run once, when that is called for the first time.

    `inside_guarded` and `outside_guarded` run when the guard has just been entered and left.
    """

    def __init__(self, store: BlobStore, moments: dict[str, Act]) -> None:
        self._store = store
        self._moments = moments

    @contextmanager
    def guarded(self) -> Iterator[None]:
        with self._store.guarded():
            self._reach("inside_guarded")
            yield
        self._reach("outside_guarded")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def stepped(*arguments: object, **named: object) -> object:
            self._reach(f"before_{name}")
            answer = found(*arguments, **named)
            self._reach(f"after_{name}")
            return answer

        return stepped

    def _reach(self, moment: str) -> None:
        if act := self._moments.pop(moment, None):
            act()


class Without:
    """A store that lacks one of its steps: `ensure` or `guarded`."""

    def __init__(self, store: BlobStore, step: str) -> None:
        self._store = store
        self._step = step

    @contextmanager
    def guarded(self) -> Iterator[None]:
        if self._step == "guarded":
            yield
            return
        with self._store.guarded():
            yield

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: None) if name == self._step else getattr(self._store, name)


def meddled(store: BlobStore, **moments: Act) -> BlobStore:
    return cast("BlobStore", Meddling(store, moments))


def without(store: BlobStore, step: str) -> BlobStore:
    return cast("BlobStore", Without(store, step))


@contextmanager
def at_statement(database: Database, words: str, act: Act, *, moment: str = "after") -> Iterator[None]:
    """Something else happens once, right before or after the first statement that has these words."""
    waiting = [act]

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if waiting and words in statement:
            waiting.pop()()

    def overheard(run: Callable[..., Any]) -> Callable[..., Any]:
        def plainly(self: Plain, *given: Any) -> Any:
            if moment == "before":
                hear(None, None, self.sql)
            found = run(self, *given)
            if moment == "after":
                hear(None, None, self.sql)
            return found

        return plainly

    name = f"{moment}_cursor_execute"
    event.listen(database.engine, name, hear)
    ways = {way: getattr(Plain, way) for way in ("rows_on", "count", "new_id", "each")}
    for way, run in ways.items():
        setattr(Plain, way, overheard(run))
    try:
        yield
    finally:
        event.remove(database.engine, name, hear)
        for way, run in ways.items():
            setattr(Plain, way, run)
    assert not waiting, f"nobody said {words!r}"
