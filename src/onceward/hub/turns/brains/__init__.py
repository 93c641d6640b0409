"""Brains that run the agents of other frameworks, one module for each. Only that module imports the framework.

Not here: what a brain is (`execution/brain.py`), and tools that run once outside of turns (`onceward.integrations`).
Start with `langgraph.py`.
"""

__all__ = ["langgraph"]
