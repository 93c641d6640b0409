"""The effects of the demo's routes, the same for every framework. The adapters beside this file only translate.

All effects are written to one SQLite file. It stands for the outside world (mail sent, money moved): effects cannot be
undone, several processes share it, and `effects()` counts them independently of the ledger.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from examples.demo.orders import ACT, AGENT, FEEDBACK, HEARTBEAT, LETTER, STORY, WRITING, Fields, Refused, check

SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (number INTEGER PRIMARY KEY, action TEXT, subject TEXT, user TEXT, content TEXT);
CREATE TABLE IF NOT EXISTS stories (id TEXT PRIMARY KEY, author TEXT, title TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS agents (token TEXT PRIMARY KEY, user TEXT);
"""
# Ada has two tokens, as during a rotation.
TOKENS = {"ada-token": "ada", "ada-new-token": "ada", "bob-token": "bob"}
# The kinds of texts that can be reviewed.
REVIEWED = ("story", "proposal")

Order = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a route. `content` is sent as JSON, None as an empty body."""

    status: int
    content: object = None


class World:
    """The outside world in one SQLite file. Every call opens a connection, so any thread of any process may call."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._connect() as connection:
            connection.executescript(SCHEMA)
            connection.executemany("INSERT OR IGNORE INTO agents VALUES (?, ?)", TOKENS.items())

    def user(self, authorization: str | None, session: str | None) -> str:
        """Return the caller, by bearer token or by session cookie."""
        token = authorization.removeprefix("Bearer ") if authorization else session
        with self._connect() as connection:
            row = connection.execute("SELECT user FROM agents WHERE token = ?", (token,)).fetchone()
        if row is None:
            raise Refused(401, "unauthorized", "Send a bearer token. POST /api/auth/agent returns one.")
        return str(row[0])

    def revoke(self, token: str) -> None:
        with self._connect() as connection:
            connection.execute("DELETE FROM agents WHERE token = ?", (token,))

    def register(self, order: Order) -> Reply:
        agent = check(order, AGENT)
        token = uuid4().hex
        with self._connect() as connection:
            connection.execute("INSERT INTO agents VALUES (?, ?)", (token, agent["name"]))
            self._happen(connection, "register", str(agent["name"]), "", agent)
        return Reply(201, {"name": agent["name"], "token": token})

    def act(self, user: str, dweller: str, order: Order) -> Reply:
        return self._do(user, "act", dweller, order, ACT, 200)

    def heartbeat(self, user: str, dweller: str, order: Order) -> Reply:
        return self._do(user, "heartbeat", dweller, order, HEARTBEAT, 200)

    def propose(self, user: str, order: Order) -> Reply:
        return self._do(user, "propose", "proposals", order, WRITING, 201)

    def review(self, user: str, kind: str, subject: str, order: Order) -> Reply:
        if kind not in REVIEWED:
            raise Refused(404, "notFound", f"Only these can be reviewed: {', '.join(REVIEWED)}.")
        return self._do(user, "review", f"{kind}/{subject}", order, FEEDBACK, 201)

    def send_letter(self, user: str, order: Order) -> Reply:
        """Send a letter. It cannot be taken back: better never than twice."""
        return self._do(user, "letter", str(order.get("to")), order, LETTER, 202)

    def upload(self, user: str, name: str, content: bytes) -> Reply:
        with self._connect() as connection:
            number = self._happen(connection, "upload", name, user, {"bytes": len(content)})
        return Reply(201, {"upload": number, "name": name, "bytes": len(content)})

    def tell(self, user: str, dweller: str) -> Iterator[str]:
        """Yield a tale as server-sent events, one for each word."""
        with self._connect() as connection:
            number = self._happen(connection, "tell", dweller, user, {})
        for word in f"This is tale {number} of {dweller} .".split():
            yield f"event: word\ndata: {json.dumps(word)}\n\n"

    def stories(self) -> Reply:
        with self._connect() as connection:
            rows = connection.execute("SELECT id, author, title, text FROM stories ORDER BY rowid DESC LIMIT 100")
            return Reply(200, {"stories": [dict(zip(STORY_COLUMNS, row, strict=True)) for row in rows]})

    def write_story(self, user: str, order: Order) -> Reply:
        story = {"id": uuid4().hex, "author": user, **check(order, WRITING)}
        with self._connect() as connection:
            connection.execute("INSERT INTO stories VALUES (:id, :author, :title, :text)", story)
            self._happen(connection, "write", str(story["id"]), user, story)
        return Reply(201, story)

    def change_story(self, user: str, story: str, order: Order, *, whole: bool) -> Reply:
        """Replace a whole story (PUT) or some of its fields (PATCH)."""
        fields = check(order, WRITING if whole else STORY)
        with self._connect() as connection:
            row = connection.execute("SELECT author, title, text FROM stories WHERE id = ?", (story,)).fetchone()
            if row is None or row[0] != user:
                raise Refused(404, "notFound", "You have no story with this id.")
            changed = {"id": story, "author": row[0], "title": row[1], "text": row[2], **fields}
            connection.execute("UPDATE stories SET title = :title, text = :text WHERE id = :id", changed)
            self._happen(connection, "change", story, user, fields)
        return Reply(200, changed)

    def delete_story(self, user: str, story: str) -> Reply:
        with self._connect() as connection:
            connection.execute("DELETE FROM stories WHERE id = ? AND author = ?", (story, user))
            self._happen(connection, "delete", story, user, {})
        return Reply(204)

    def happen(self, action: str, subject: str, user: str = "", content: object = None) -> int:
        """Record an effect and return its number."""
        with self._connect() as connection:
            return self._happen(connection, action, subject, user, content)

    def effects(self, action: str, subject: str) -> int:
        """Return how often an effect happened."""
        with self._connect() as connection:
            counted = "SELECT count(*) FROM effects WHERE action = ? AND subject = ?"
            return int(connection.execute(counted, (action, subject)).fetchone()[0])

    def _do(self, user: str, action: str, subject: str, order: Order, fields: Fields, status: int) -> Reply:
        checked = check(order, fields)
        with self._connect() as connection:
            number = self._happen(connection, action, subject, user, checked)
        return Reply(status, {action: number, "subject": subject, "by": user, **checked})

    def _happen(self, connection: sqlite3.Connection, action: str, subject: str, user: str, content: object) -> int:
        row = (action, subject, user, json.dumps(content))
        added = connection.execute("INSERT INTO effects (action, subject, user, content) VALUES (?, ?, ?, ?)", row)
        return added.lastrowid or 0

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open a connection whose changes commit at the end, or not at all. Commits survive a killed process."""
        with closing(sqlite3.connect(self.file, timeout=20, isolation_level="IMMEDIATE")) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection


STORY_COLUMNS = ("id", "author", "title", "text")
