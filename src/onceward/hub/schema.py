"""Which schema a request of ingest works on: found out once, and the same to its end, whoever switches meanwhile.

A keyed request is told apart by its schema, too. So it is asked for before the key is looked at, and the handler takes
what was found then: a retry after a switch is another request (422), and never an insert into the other schema.
"""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from onceward.core.request import KEY_HEADERS
from onceward.db.engine import Database
from onceward.errors import StoreUnavailable
from onceward.http.wire import App, Receive, Send
from onceward.hub.problems import refuse, store_failed
from onceward.hub.state import hub_of
from onceward.ingest.schema import Schema, active_schema

# What changes something in a schema, by method and path.
_CHANGING = frozenset({("POST", "/db/insert"), ("PUT", "/policies")})
_KEYS = frozenset(name.encode() for name in KEY_HEADERS)
_STATE = "schema"


class Schemas:
    """Leaves the schema in the state of the keyed requests that need it; 503 when the database does not say."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in _CHANGING and _has_key(scope):
            try:
                schema = await self._active()
            except StoreUnavailable as error:
                await refuse(scope, receive, send, store_failed(error))
                return
            scope.setdefault("state", {})[_STATE] = schema
        await self.app(scope, receive, send)

    async def _active(self) -> Schema:
        # A reader of SQLite's WAL waits for nobody, and is done sooner than a thread is asked.
        if self._database.is_sqlite:
            return active_now(self._database)
        return await run_in_threadpool(active_now, self._database)


def active_now(database: Database) -> Schema:
    with database.read() as tx:
        return active_schema(tx)


def schema_of(connection: HTTPConnection) -> Schema:
    """The schema of this request, from a thread. Ask once: only a keyed request has it fixed."""
    found = connection.scope["state"].get(_STATE)
    return found if isinstance(found, Schema) else active_now(hub_of(connection).database)


def variant_of(scope: Any) -> str | None:
    """For the idempotency middleware: `variant=variant_of`."""
    found = scope["state"].get(_STATE)
    return found.name if isinstance(found, Schema) else None


def _has_key(scope: Any) -> bool:
    return any(name in _KEYS for name, _ in scope["headers"])
