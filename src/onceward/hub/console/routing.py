"""The routes of the console, for the hub's application and for a console without a hub."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onceward.errors import NotFound
from onceward.hub.console.assets import asset
from onceward.hub.console.attachments import page as attachments
from onceward.hub.console.pages import (
    audit,
    bulk,
    events,
    in_doubt,
    login,
    operation,
    operations,
    overview,
    resolution,
    storage,
    tasks,
    theme,
    tokens,
    topics,
    turns,
)
from onceward.hub.console.pages.ingest import entries, message, policy
from onceward.hub.console.visit import (
    AUDIT,
    EVENTS,
    HOME,
    IN_DOUBT,
    INGEST,
    OPERATIONS,
    OVERVIEW,
    STORAGE,
    TASKS,
    TOKENS,
    TOPICS,
    TURNS,
    Endpoint,
    Visit,
    endpoint,
    see_other,
)

# Normalizing and previewing a message needs the scope that the API's routes need. Only policies are for admins.
_PASTE = replace(INGEST, act=("write",))


def routes() -> list[Route]:
    """Return the routes of all pages. A page without a form also answers POST, with a page that says so."""
    pages: dict[str, Endpoint] = {
        "login": endpoint(None, login.show, login.log_in),
        "logout": endpoint(None, post=login.log_out),
        "theme": endpoint(None, post=theme.choose),
        "": endpoint(OVERVIEW, overview.show),
        "in-doubt": endpoint(IN_DOUBT, in_doubt.show),
        "in-doubt/ask": endpoint(IN_DOUBT, post=in_doubt.ask),
        "in-doubt/resolve": endpoint(IN_DOUBT, resolution.show, resolution.decide, get_needs_act=True),
        "in-doubt/bulk": endpoint(IN_DOUBT, bulk.plan, bulk.apply, get_needs_act=True),
        "operations": endpoint(OPERATIONS, operations.show),
        "operation": endpoint(OPERATIONS, operation.show),
        "turns": endpoint(TURNS, turns.show),
        "turns/{turn_id}": endpoint(TURNS, turns.show_one),
        "events": endpoint(EVENTS, events.show),
        "events/stream": endpoint(EVENTS, events.stream),
        "topics": endpoint(TOPICS, topics.show),
        "topics/{topic_id}": endpoint(TOPICS, topics.show_one),
        "tasks": endpoint(TASKS, tasks.show, tasks.create),
        "tasks/{task_id}": endpoint(TASKS, tasks.show_one, attach=tasks.attach),
        "tasks/{task_id}/link": endpoint(TASKS, tasks.show_one, tasks.link),
        "tasks/{task_id}/delete": endpoint(TASKS, tasks.ask_delete, tasks.delete, get_needs_act=True),
        "attachments/{attachment_id}": endpoint(TASKS, attachments.show, attachments.relabel),
        "attachments/{attachment_id}/remove": endpoint(
            TASKS, attachments.ask_remove, attachments.remove, get_needs_act=True
        ),
        "attachments/{attachment_id}/content": endpoint(TASKS, attachments.content),
        "ingest": endpoint(INGEST, entries.show),
        "ingest/policy": endpoint(INGEST, policy.show, policy.change, get_needs_act=True),
        "ingest/message": endpoint(_PASTE, message.show, message.explain, get_needs_act=True),
        "storage": endpoint(STORAGE, storage.show, storage.act),
        "tokens": endpoint(TOKENS, tokens.show, tokens.revoke),
        "audit": endpoint(AUDIT, audit.show),
    }
    return [
        Route("/console/static/{name}", asset),
        *(Route(f"/console/{path}", page, methods=["GET", "POST"]) for path, page in pages.items()),
        Route("/console", _home),
        # One segment each, so that the index of routes does not try them for other paths.
        Route("/console/{page}", endpoint(None, _unknown), methods=["GET", "POST"]),
        Route("/console/{section}/{page}", endpoint(None, _unknown), methods=["GET", "POST"]),
    ]


async def _home(_request: Request) -> Response:
    return see_other(HOME)


async def _unknown(visit: Visit) -> Response:
    raise NotFound(f"the console has no page {visit.request.url.path!r}")
