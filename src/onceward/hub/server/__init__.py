"""The hub's process: listener, workers, protocols, connection limits and background jobs.

Not here: the application that it serves (`hub/app.py`).
Start with `serve.py`.
"""

__all__ = ["jobs", "serve"]
