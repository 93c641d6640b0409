"""The audit log: who did what to tokens, policies, the test mode, stored files and claims, when, and with what result.

Not here: the request log (`hub/web/request_log.py`), and the events that clients follow (`hub/events/`).
Start with `recorder.py`; `log.py` reads and writes the rows.
"""

__all__ = ["actor", "filter", "log", "recorder"]
