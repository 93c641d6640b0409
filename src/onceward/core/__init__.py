"""Pure functions and values: no clock, no randomness, no I/O, no `async`.

Not here: anything that waits or reads a clock. `log_event` is the only function with a side effect: it calls the
logger that it gets.
Start with `claim.py`, the state table that everything else serves.
"""

__all__ = [
    "canonical",
    "claim",
    "fingerprint",
    "json_text",
    "key",
    "log_event",
    "moved",
    "outcome",
    "record",
    "scalar",
    "timestamp",
    "value",
    "verdict",
]
