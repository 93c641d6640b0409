"""Parts of the hub, and the scopes that are narrowed to one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceward.hub.app import create_app
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.security.scopes import GRANTABLE, NARROWABLE, part_of, scope_needed, scopes_in, scopes_of

# Read by a handler: an upload whose bytes contradict its media type.
IN_HANDLERS = {("tasks", "admin")}


@pytest.fixture
def routes(tmp_path: Path) -> set[tuple[str, str]]:
    """Method and path of every route of the hub that is not public."""
    app: Any = create_app(Config(hub=HubSettings(data_dir=str(tmp_path))))
    while not hasattr(app, "routes"):
        app = app.app
    found = {(method, route.path) for route in app.routes for method in (getattr(route, "methods", None) or {"GET"})}
    return {(method, path) for method, path in found if scope_needed(method, path) != "open"}


def test_every_route_belongs_to_a_part_and_its_scope_can_be_narrowed_to_it(routes: set[tuple[str, str]]) -> None:
    without_part = {path for _, path in routes if not part_of(path)}
    needed = {
        (part_of(path), scope)
        for method, path in routes
        for scope in scopes_of(scope_needed(method, path))
        if part_of(path) != "metrics"
    }

    assert not without_part, "add the paths to _PART_UNDER in hub/security/scopes.py"
    assert needed | IN_HANDLERS == {(part, scope) for part, scopes in NARROWABLE.items() for scope in scopes}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/api/v1/topics", "topics"),
        ("/api/v1/topics/t/messages", "topics"),
        ("/api/v1/topics/", "topics"),
        ("/api/v1/topicsx", ""),
        ("/v1/attachments/a/content", "tasks"),
        ("/ws", "events"),
        ("/metrics", "metrics"),
        ("/", ""),
        ("/unknown", ""),
    ],
)
def test_the_part_follows_from_the_path(path: str, part: str) -> None:
    assert part_of(path) == part


def test_a_narrowed_scope_counts_in_its_part_alone() -> None:
    granted = {"read:topics", "write:tasks", "metrics"}

    assert "read" in scopes_in("topics", granted)
    assert "write" not in scopes_in("topics", granted)
    assert {"read", "write", "admin"}.isdisjoint(scopes_in("ingest", granted))
    assert {"read", "write", "admin"}.isdisjoint(scopes_in("", granted))
    assert scopes_in("topics", {"read"}) == {"read"}


def test_a_scope_without_an_effect_cannot_be_granted() -> None:
    assert {"read", "metrics", "read:topics", "admin:claims"} <= set(GRANTABLE)
    assert {"admin:topics", "write:events", "read:metrics", "read:", "read:nothing"}.isdisjoint(GRANTABLE)
