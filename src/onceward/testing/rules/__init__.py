"""Tests of the store contract, by topic. The docstring of each test names the rule of `onceward.store` that it tests.

Not here: tests of a single store (`tests/store/`).
Start with `claims.py`.
"""

__all__ = [
    "batches",
    "chunks",
    "claims",
    "clocks",
    "doubts",
    "fidelity",
    "lifecycle",
    "pages",
    "purges",
    "recovery",
    "retention",
    "versions",
]
