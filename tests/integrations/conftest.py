"""Integrations are tested on the ledgers of the tools."""

from tests.tools.conftest import backend, ledger

__all__ = ["backend", "ledger"]
