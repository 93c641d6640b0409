"""Attachments per second, new and duplicate, compared with the same rows written by hand in one transaction."""

from __future__ import annotations

import enum
import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

import psycopg

from bench.contest import Figures
from onceward.core.canonical import Json
from onceward.hub import topics
from onceward.hub.db.engine import Database

OURS = "Onceward"
BY_HAND = "raw SQL in one transaction"

_TIME = "2026-11-16T03:51:37.775676Z"
_INSERT = """
    INSERT INTO topic_attachments (id, topic_id, kind, key, value_json, dedupe_key, source_message_id, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_EVENT = """
    INSERT INTO events (name, topic_id, entity_type, entity_id, data, created_at) VALUES (?, ?, ?, ?, ?, ?)
    RETURNING event_id
"""
_FIND = "SELECT * FROM topic_attachments WHERE topic_id = ? AND kind = ? AND COALESCE(key, '') = ? AND dedupe_key = ?"


class Mode(enum.StrEnum):
    NEW = "new"
    DUPLICATE = "duplicate"


class Contestant(Protocol):
    """A library or baseline to measure. `add` adds the attachment with a number and returns whether it was new."""

    @property
    def name(self) -> str: ...

    def add(self, number: int) -> bool: ...


def _value(number: int) -> dict[str, Json]:
    return {"url": f"https://example.com/{number}", "title": "A page that somebody found"}


class Ours:
    name = OURS

    def __init__(self, database: Database, topic_id: str) -> None:
        self._database = database
        self._topic_id = topic_id

    def add(self, number: int) -> bool:
        new = topics.NewAttachment("ours", _value(number), dedupe_key=f"url:{number}")
        with self._database.write() as tx:
            return topics.attach(tx, self._topic_id, new).event_id is not None


class ByHand:
    """The same rows by hand: no checks, no generated ids, no pool, constant timestamps."""

    name = BY_HAND

    def __init__(self, execute: Callable[[str, Sequence[Any]], Any], begin: str, topic_id: str) -> None:
        self._execute = execute
        self._begin = begin
        self._topic_id = topic_id

    def add(self, number: int) -> bool:
        value = json.dumps(_value(number))
        key, entity, topic_id = f"url:{number}", f"att_raw_{number}", self._topic_id
        self._execute(self._begin, ())
        added: bool = self._execute(_INSERT, (entity, topic_id, "raw", None, value, key, None, _TIME)).rowcount == 1
        if added:
            data = f'{{"attachment":{{"id":"{entity}","topic_id":"{topic_id}","kind":"raw","key":null,"value_json":{value}}}}}'
            self._execute(_EVENT, ("topic.attachment_added", topic_id, "attachment", entity, data, _TIME)).fetchone()
        else:
            self._execute(_FIND, (topic_id, "raw", "", key)).fetchone()
        self._execute("COMMIT", ())
        return added


def sqlite_by_hand(path: str, topic_id: str) -> tuple[ByHand, Callable[[], None]]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return ByHand(connection.execute, "BEGIN IMMEDIATE", topic_id), connection.close


def postgres_by_hand(url: str, topic_id: str) -> tuple[ByHand, Callable[[], None]]:
    connection = psycopg.connect(url, autocommit=True)

    def execute(statement: str, values: Sequence[Any]) -> Any:
        return connection.execute(statement.replace("?", "%s").encode(), values or None, prepare=bool(values))

    return ByHand(execute, "BEGIN", topic_id), connection.close


def compete(
    store: str,
    database: Database,
    by_hand: Callable[[str], tuple[ByHand, Callable[[], None]]],
    rounds: int,
    seconds: float,
) -> Figures:
    """Measure the contestants in turn with one caller each: first new attachments, then the same ones again."""
    with database.write() as tx:
        topic, _ = topics.create_topic(tx, "Bench")
    hand, close = by_hand(topic.id)
    with closing(_Closing(close)):
        contestants: list[Contestant] = [Ours(database, topic.id), hand]
        numbers = {contestant.name: itertools.count() for contestant in contestants}
        figures = Figures.empty()
        figures.stores[store] = [contestant.name for contestant in contestants]
        for turn in range(rounds):
            for contestant in contestants[:: 1 if turn % 2 else -1]:
                added = _rate(figures, store, contestant, Mode.NEW, numbers[contestant.name], seconds)
                again = itertools.cycle(added)
                _rate(figures, store, contestant, Mode.DUPLICATE, again, seconds)
    return figures


def _rate(figures: Figures, store: str, contestant: Contestant, mode: Mode, numbers: Any, seconds: float) -> list[int]:
    done: list[int] = []
    began = time.perf_counter()
    while not done or time.perf_counter() - began < seconds:
        number = next(numbers)
        assert contestant.add(number) is (mode is Mode.NEW), f"attachment {number} was expected to be {mode}"
        done.append(number)
    rate = len(done) / (time.perf_counter() - began)
    figures.rates.setdefault((store, contestant.name, mode), []).append(rate)
    return done


class _Closing:
    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
