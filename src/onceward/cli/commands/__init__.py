"""The commands of `onceward`, one module for each command or group.

Not here: the data that they work on (`cli/backend.py`, `cli/local/`, `cli/remote/`).
Start with `task.py`.
"""

__all__ = [
    "admin",
    "attach",
    "audit",
    "backup",
    "claims",
    "config",
    "console",
    "demo",
    "doctor",
    "ingest",
    "mcp",
    "schema",
    "serve",
    "task",
    "token",
]
