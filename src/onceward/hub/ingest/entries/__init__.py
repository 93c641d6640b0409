"""Ingested entries: the decision for an entry whose keys exist already, and the tables, policies, events and batches.

Not here: how a message becomes an entry (`normalize/`, `email/`, `telegram/`).
Start with `decision.py`, then `insert.py`.
"""

__all__ = ["columns", "draft", "insert", "policy", "preview", "result", "schema"]
