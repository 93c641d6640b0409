"""Monitoring of a hub: gauges, the record of its doubts, and the webhook that reports them.

Not here: counters of requests (`hub/web/metrics.py`), the route `/metrics` (`hub/routes/metrics.py`), and log events
(`core/log_event.py`).
Start with `doubts.py`, then `webhook.py`. `gauges.py` stands alone.
"""

__all__ = ["doubts", "gauges", "webhook"]
