"""Artifacts: computed values, reused while their inputs and dependencies are the same, else computed again.

Not here: effects, which are never repeated (`onceward.tools`).
Start with `artifacts.py`.
"""

__all__ = ["artifacts", "explained"]
