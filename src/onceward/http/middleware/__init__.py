"""The middlewares for ASGI and WSGI, and the lookup of the rules of a framework's handlers.

Not here: the decisions that they share (`http/keyed/`), and one running request (`http/response/`).
Start with `asgi.py`.
"""

__all__ = ["asgi", "coverage", "handler_lookup", "wsgi"]
