"""The fixtures of `tests/tools`: these need only the ledger."""

from __future__ import annotations

from tests.tools.conftest import backend, ledger

__all__ = ["backend", "ledger"]
