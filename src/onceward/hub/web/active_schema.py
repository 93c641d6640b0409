"""Active schema of an ingest request: read once, and unchanged for the whole request even if the test mode is switched.

The schema is part of a keyed request's fingerprint. The middleware reads it before the key is checked, and the handler
uses the same value. A retry after a switch is therefore a different request (422), never an insert into the other schema.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from onceward.errors import StoreUnavailable
from onceward.http.asgi_types import App, Receive, Send
from onceward.http.request.headers import KEY_HEADERS
from onceward.hub.db.engine import Database
from onceward.hub.ingest.entries.schema import EntrySchema, find_active_schema
from onceward.hub.state import hub_of
from onceward.hub.web.problems import refuse, store_failed

# Method and path of the requests that change data in a schema.
_CHANGING = frozenset({("POST", "/db/insert"), ("PUT", "/policies")})
_KEYS = frozenset(name.encode() for name in KEY_HEADERS)
_STATE = "schema"


class ActiveSchemaMiddleware:
    """Middleware that puts the active schema into the state of keyed ingest requests; 503 if the database is unavailable."""

    def __init__(self, app: App, database: Database) -> None:
        self.app = app
        self._database = database

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in _CHANGING and _has_key(scope):
            try:
                schema = await find_active_schema(self._database)
            except StoreUnavailable as error:
                await refuse(scope, receive, send, store_failed(error))
                return
            scope.setdefault("state", {})[_STATE] = schema
        await self.app(scope, receive, send)


def stored_schema(connection: HTTPConnection) -> EntrySchema | None:
    """Return the schema that the middleware has read, for keyed requests only."""
    found = connection.scope["state"].get(_STATE)
    return found if isinstance(found, EntrySchema) else None


async def schema_of(connection: HTTPConnection) -> EntrySchema:
    """Return the schema of this request. Call it only once, because only keyed requests store it."""
    return stored_schema(connection) or await find_active_schema(hub_of(connection).database)


def variant_of(scope: Any) -> str | None:
    """Name of the request's schema, for the idempotency middleware: `variant=variant_of`."""
    found = scope["state"].get(_STATE)
    return found.name if isinstance(found, EntrySchema) else None


def _has_key(scope: Any) -> bool:
    return any(name in _KEYS for name, _ in scope["headers"])
