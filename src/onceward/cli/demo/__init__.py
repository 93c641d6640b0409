"""`onceward demo`: a shop that is killed while it charges a card, and what a retry then does. Real processes, no mocks.

Not here: the command itself (`cli/commands/demo.py`), and larger examples (`examples/`).
Start with `story.py`; `shop.py` is the application, and `bank.py` the provider that it calls.
"""

__all__ = ["bank", "shop", "story"]
