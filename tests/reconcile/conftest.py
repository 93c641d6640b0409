from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.reconcile.doubts import Doubt, in_doubt


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bypass any proxy: the servers of the tests are on this machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def doubt() -> Iterator[Doubt]:
    with in_doubt() as doubt:
        yield doubt
