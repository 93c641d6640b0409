"""Brains that run the agents of other frameworks, under their public names: re-exports of `onceward.hub.turns.brains`.

Nothing is defined here.
Start with `onceward/hub/turns/brains/`.
"""

__all__ = ["langgraph"]
