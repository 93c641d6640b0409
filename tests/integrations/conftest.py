"""Integrations are tested on the ledgers of the tools."""

from tests.turns.tools.conftest import backend, ledger

__all__ = ["backend", "ledger"]
