"""Turns as database rows: messages, states, and every guarded change of a turn.

Not here: running a turn (`execution/`, `runners/`).
Start with `turn.py`, then `transitions.py`.
"""

__all__ = ["decision", "history", "message", "stream", "transitions", "turn"]
