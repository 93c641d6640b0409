"""Turns over HTTP: the brain and runner of a hub process, waits for a turn, and a turn as server-sent events.

Not here: the turns themselves (`hub/turns/`), and the routes (`hub/routes/chat.py`).
Start with `service.py`.
"""

__all__ = ["service", "stream", "turn_view"]
