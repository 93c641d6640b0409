"""The response: recorded while the handler sends it, settled before its end is sent, and replayed to duplicates.

Not here: the stored form (`http/stored/`), and admission (`http/keyed/`).
Start with `asgi_exchange.py`; `settlement.py` records how an exchange ends.
"""

__all__ = ["asgi_exchange", "recorded_stream", "replay", "settlement", "shape", "sse", "wsgi_exchange"]
