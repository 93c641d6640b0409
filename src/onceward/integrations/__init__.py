"""Frameworks that call tools: one module for each, which imports the framework; nothing else does.

Each is built on the framework's own extension point. Start with `mcp`.
"""
