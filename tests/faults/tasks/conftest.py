"""The fixtures of `tests/hub/tasks`, for real processes."""

from __future__ import annotations

from tests.hub.tasks.conftest import attachment_store, backend

__all__ = ["attachment_store", "backend"]
