"""Intake of messages: store a message with its turn, or recognise a duplicate.

Not here: running a turn (`execution/`).
Start with `receive.py`.
"""

__all__ = ["gateway", "receive"]
