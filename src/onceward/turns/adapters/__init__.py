"""Old import paths of `onceward.tools.functions` and `onceward.integrations.mcp`, which still work.

Nothing is defined here.
Start with `onceward/tools/`.
"""
