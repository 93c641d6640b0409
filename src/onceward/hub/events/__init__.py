"""The event log, and the feed that lets clients follow it without missing or repeating an event.

Not here: the events themselves; each part of the hub appends its own.
Start with `log.py` for the log, then `feed.py` and `session.py` for the feed.
"""

__all__ = ["asgi", "feed", "handshake", "log", "paging", "sse", "websocket"]
