"""Messages from Telegram: as a bot receives them, as Telegram Desktop exports them, and in a plain form of our own."""

from onceward.ingest.telegram.normalize import normalize_exported, normalize_telegram

__all__ = ["normalize_exported", "normalize_telegram"]
