"""Runners of turns under their public names: re-exports of `onceward.hub.turns.runners`.

Nothing is defined here. Start with `onceward/hub/turns/runners/`.
"""

from onceward.hub.turns.runners import Runner

__all__ = ["Runner"]
