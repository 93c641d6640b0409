"""Normalization that all sources share: dates, text, subjects, URLs and keys. Pure.

Not here: normalization that only mail (`email/`) or Telegram (`telegram/`) needs.
Start with `keys.py`.
"""

__all__ = ["caller_fields", "dates", "fields", "keys", "subject", "text", "tracking", "url"]
