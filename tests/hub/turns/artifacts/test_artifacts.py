"""Artifacts: reused exactly where the brain declares it, and computed again everywhere else."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text

from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.temp_file import TempFile
from onceward.hub.db.engine import Database
from onceward.hub.turns.artifacts.artifacts import INLINE_BYTES_MAX, Artifacts, purge_artifacts
from onceward.tools.fingerprint import dep_fp, input_fp

# As the seed declares it.
DECLARED: dict[str, dict[str, object]] = {
    "parsing": {"scope": "same_input"},
    "intents": {"scope": "same_input_same_dep"},
    "tool_plan": {"scope": "same_input_same_dep", "requires_revalidate": True},
    "scratch": {"scope": "never"},
    "short": {"scope": "same_input", "ttl_seconds": 60},
}
# A database of one's own costs a server much; what both kinds must do alike is tested on both.
embedded = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
LARGE = "x" * (INLINE_BYTES_MAX + 1)


class Session:
    """Runs of one session on one database, with a clock that the test moves."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.blobs = FolderBlobs(folder / "blobs")
        self.moment = datetime.datetime(2026, 2, 17, tzinfo=datetime.UTC)
        self.computed = 0

    def run(self, message: str = "hello", versions: Mapping[str, object] | None = None, **settings: Any) -> Artifacts:
        whose = {"principal": "alice", "tenant_id": "acme", "session_key": "s"}
        return Artifacts(
            self.database,
            **{
                "input_fp": input_fp("acme", "bot", "s", "web", [message]),
                "dep_fp": dep_fp(versions or {"kb_version": 1}),
                "reuse": DECLARED,
                "blobs": self.blobs,
                "now": lambda: self.moment,
                **whose,
                **settings,
            },
        )

    def get(self, run: Artifacts, name: str, value: object = None, **more: Any) -> Any:
        def compute() -> object:
            self.computed += 1
            return self.computed if value is None else value

        return asyncio.run(run.get(name, compute, **more))

    def rows(self) -> list[Any]:
        with self.database.read() as tx:
            return list(tx.execute(text("SELECT name, value, blob_key, dep_fp FROM artifacts ORDER BY name")))


@pytest.fixture
def session(database: Database, tmp_path: Path) -> Session:
    return Session(database, tmp_path)


def why(run: Artifacts) -> tuple[bool, str]:
    found = run.explain()[-1]
    return found.reused, found.reason


@embedded
@pytest.mark.parametrize("name", ["parsing", "intents"])
def test_the_next_run_uses_the_computed_artifact(session: Session, name: str) -> None:
    first = session.get(session.run(), name)
    second = session.run()

    assert session.get(second, name) == first == 1
    assert session.computed == 1
    same = "same input" if name == "parsing" else "same input and dependencies"
    assert why(second) == (True, f"{same}; computed at 2026-02-17T00:00:00.000000Z")


@embedded
@pytest.mark.parametrize("name", ["parsing", "intents"])
def test_another_input_computes_it_again(session: Session, name: str) -> None:
    session.get(session.run("hello"), name)
    other = session.run("goodbye")

    assert session.get(other, name) == 2
    assert why(other) == (False, "the input is different: other messages, or other metadata")


def test_another_version_of_a_dependency_computes_dependent_artifacts_again(session: Session) -> None:
    for name in ("parsing", "intents"):
        session.get(session.run(), name)
    other = session.run(versions={"kb_version": 2})

    assert session.get(other, "parsing") == 1
    assert session.get(other, "intents") == 3
    assert [(one.name, one.reused) for one in other.explain()] == [("parsing", True), ("intents", False)]
    assert other.explain("intents")[0].reason == "the versions of its dependencies differ"


@embedded
def test_both_versions_are_stored_beside_each_other(session: Session) -> None:
    session.get(session.run(versions={"kb_version": 1}), "intents")
    session.get(session.run(versions={"kb_version": 2}), "intents")

    assert session.get(session.run(versions={"kb_version": 1}), "intents") == 1


@embedded
@pytest.mark.parametrize(
    ("name", "reason"),
    [("scratch", "its scope is 'never'"), ("unheard", "its reuse is not declared, so it is always computed")],
)
def test_an_artifact_declared_never_or_not_at_all_is_not_stored(session: Session, name: str, reason: str) -> None:
    run = session.run()

    assert [session.get(run, name) for _ in range(2)] == [1, 2]
    assert why(run) == (False, reason)
    assert session.rows() == []


@embedded
@pytest.mark.parametrize(
    ("hook", "reused", "reason"),
    [
        (None, False, "it requires revalidation, but no revalidate function was given"),
        (lambda plan: plan == 1, True, "same input and dependencies"),
        (lambda plan: plan == 2, False, "its revalidate function rejected the stored value"),
    ],
    ids=["no hook", "still holds", "no more"],
)
def test_an_artifact_to_be_revalidated_is_used_only_if_that_succeeds(
    session: Session, hook: Callable[[Any], bool] | None, reused: bool, reason: str
) -> None:
    session.get(session.run(), "tool_plan")
    second = session.run()

    assert session.get(second, "tool_plan", revalidate=hook) == (1 if reused else 2)
    assert why(second)[0] is reused
    assert why(second)[1].startswith(reason)


@embedded
def test_the_hook_may_be_part_of_the_declaration(session: Session) -> None:
    async def holds(value: object) -> bool:
        return value == 1

    declared = {"tool_plan": {**DECLARED["tool_plan"], "revalidate": holds}}

    assert [session.get(session.run(reuse=declared), "tool_plan") for _ in range(2)] == [1, 1]


def test_an_artifact_expires(session: Session) -> None:
    session.get(session.run(), "short")
    session.moment += datetime.timedelta(seconds=59)
    assert session.get(session.run(), "short") == 1
    session.moment += datetime.timedelta(seconds=1)
    run = session.run()

    assert session.get(run, "short") == 2
    assert why(run) == (False, "it expired at 2026-02-17T00:01:00.000000Z")
    assert session.get(session.run(), "short") == 2


def test_expired_artifacts_are_purged_in_bounded_pages(session: Session) -> None:
    for message in ("a", "b", "c"):
        session.get(session.run(message), "short")
    session.get(session.run(), "parsing")
    session.moment += datetime.timedelta(seconds=61)

    with session.database.write() as tx:
        purged = [purge_artifacts(tx, session.moment, 2) for _ in range(3)]

    assert purged == [2, 1, 0]
    assert [row.name for row in session.rows()] == ["parsing"]


@embedded
@pytest.mark.parametrize("other", [{"principal": "bob"}, {"tenant_id": "other"}, {"session_key": "t"}], ids=str)
def test_another_principal_does_not_get_an_artifact(session: Session, other: dict[str, Any]) -> None:
    session.get(session.run(), "parsing")
    run = session.run(**other)

    assert session.get(run, "parsing") == 2
    assert why(run) == (False, "it has not been computed in this session yet")


@dataclasses.dataclass(frozen=True)
class Intent:
    name: str
    slots: tuple[int, ...]


@embedded
@pytest.mark.parametrize("value", [None, {}, "", "a\0b\ud800", 2**70, Intent("refund", (1, 2))], ids=range(6))
def test_values_come_back_unchanged(session: Session, value: object) -> None:
    async def compute() -> object:
        session.computed += 1
        return value

    found = [asyncio.run(session.run().get("parsing", compute)) for _ in range(2)]

    assert found == [value, value]
    assert session.computed == 1


@embedded
def test_an_unstorable_value_is_computed_every_time_with_a_warning(session: Session) -> None:
    run = session.run()
    session.get(run, "parsing", object())

    assert not session.rows()
    assert "cannot be stored" in why(run)[1]


def test_large_artifacts_are_stored_as_blobs(session: Session) -> None:
    session.get(session.run(), "parsing", LARGE)

    assert session.get(session.run(), "parsing") == LARGE
    ((_, value, blob_key, _),) = session.rows()
    assert value is None
    kept = b"".join(session.blobs.read(blob_key))
    assert blob_key.endswith(hashlib.sha256(kept).hexdigest())


@embedded
def test_missing_or_damaged_bytes_are_computed_again(session: Session, tmp_path: Path) -> None:
    session.get(session.run(), "parsing", LARGE)
    (file,) = (path for path in (tmp_path / "blobs" / "sha256").rglob("*") if path.is_file())
    file.chmod(0o600)
    file.write_bytes(b"x" * file.stat().st_size)
    damaged = session.run()
    assert session.get(damaged, "parsing", LARGE + "y") == LARGE + "y"
    for one in session.blobs.keys():  # noqa: SIM118  # not a dictionary's
        session.blobs.discard(one.key)
    gone = session.run()

    assert session.get(gone, "parsing", "small") == "small"
    assert why(damaged) == why(gone) == (False, "its stored bytes are missing or damaged")


@embedded
def test_a_full_store_does_not_stop_a_turn(session: Session, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "other")
    run = session.run(blobs=blobs)
    for folder in sorted((tmp_path / "other").iterdir()):
        if folder.is_dir():
            folder.rmdir()
        else:
            folder.unlink()
    (tmp_path / "other").rmdir()
    (tmp_path / "other").write_text("a file where the folder was")

    assert session.get(run, "parsing", LARGE) == LARGE
    assert "could not be stored" in why(run)[1]


@embedded
def test_bytes_deleted_by_gc_before_their_row_existed_are_put_again(session: Session) -> None:
    class Collected:
        """A store whose gc deletes the bytes right after they were put."""

        def put(self, temp_file: TempFile, blob_id: str) -> str:
            key = session.blobs.put(temp_file, blob_id)
            session.blobs.discard(key)
            return key

        def __getattr__(self, name: str) -> Any:
            return getattr(session.blobs, name)

    session.get(session.run(blobs=cast("BlobStore", Collected())), "parsing", LARGE)

    assert session.get(session.run(), "parsing") == LARGE
    assert session.computed == 1


@embedded
def test_without_a_blob_store_large_artifacts_stay_in_their_row(session: Session) -> None:
    session.get(session.run(blobs=None), "parsing", LARGE)

    assert session.get(session.run(blobs=None), "parsing") == LARGE
