"""Commands against a running hub, over HTTP.

Not here: the same commands on the data directly (`cli/local/`).
Start with `hub.py`.
"""

__all__ = ["hub", "ingest"]
