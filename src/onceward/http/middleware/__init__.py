"""The middlewares for ASGI and WSGI, the lookup of a framework's handlers, and the search for unguarded ones.

Not here: the decisions that they share (`http/keyed/`), and one running request (`http/response/`).
Start with `asgi.py`; `coverage.py` finds handlers whose rules no middleware enforces.
"""

__all__ = ["asgi", "coverage", "handler_lookup", "wsgi"]
