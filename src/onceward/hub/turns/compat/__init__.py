"""Smaller interfaces for use without the engine: claims on beats, and an idempotency cache.

Not here: the engine (`execution/`).
Start with `beat.py`.
"""

__all__ = ["beat", "cache"]
