"""Backends of the commands on a running hub, over HTTP.

Not here: the commands (`cli/commands/`), and data that is opened directly (`cli/local/`).
Start with `hub.py`.
"""

__all__ = ["hub", "ingest"]
