"""Backfill: inserts whole archives of messages. A second run inserts nothing.

Not here: the normalization of one message (`hub/ingest/email/`, `hub/ingest/telegram/`).
Start with `run.py`; each format has its own reader.
"""

__all__ = ["checkpoint", "detect", "item", "json_lines", "normalizer", "run"]
