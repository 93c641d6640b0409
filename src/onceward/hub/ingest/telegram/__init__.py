"""Telegram ingest: messages from the Bot API, from Telegram Desktop's export, and in our own plain form.

Not here: inserting the entry (`hub/ingest/entries/`).
Start with `normalize.py`.
"""

from onceward.hub.ingest.telegram.normalize import normalize_exported, normalize_telegram

__all__ = ["normalize_exported", "normalize_telegram"]
