"""The client side: httpx transports that retry a request with the same key, and keys that survive the process.

Not here: the typed client of the hub (`hub/client/`).
Start with `transport.py`; `policy.py` decides when a request is sent again. Needs the extra `client`.
"""

from onceward.http.client.transport import AsyncRetryTransport, Intent, Intents, RetryTransport

__all__ = ["AsyncRetryTransport", "Intent", "Intents", "RetryTransport"]
