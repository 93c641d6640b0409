"""The stored form of a response: which parts are stored, how they are encoded, and encryption.

Not here: when a response is recorded or replayed (`http/response/`).
Start with `codec.py`.
"""

__all__ = ["codec", "encryption", "policy"]
