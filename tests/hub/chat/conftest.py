"""Fixtures for tests of chat."""

from __future__ import annotations

import pytest

from onceward.hub.turns.runners.local import LocalRunner


@pytest.fixture
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no hub sweep. A setting cannot do this: the first sweep starts with the hub, and runs at some time after that."""

    async def sweep_once(_runner: LocalRunner) -> None: ...

    monkeypatch.setattr(LocalRunner, "sweep_once", sweep_once)
