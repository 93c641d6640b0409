"""Old import path of `onceward.tools.functions`."""

from onceward.tools.functions import functions

__all__ = ["functions"]
