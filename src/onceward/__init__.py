"""Onceward makes every retry safe. The public names, nothing else."""

from onceward import errors

__all__ = ["errors"]
