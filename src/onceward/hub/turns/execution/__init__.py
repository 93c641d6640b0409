"""One attempt at a turn: run the brain, gate its tool calls, commit its response.

Not here: starting attempts (`runners/`), and the tools themselves (`onceward.tools`).
Start with `engine.py`.
"""

__all__ = ["brain", "context", "delivery", "engine", "repository", "sweep"]
