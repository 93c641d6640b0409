"""The checks of `onceward doctor`: what is wrong with a hub, and what to do about it. They change nothing.

Not here: the command and its output (`cli/commands/doctor.py`).
Start with `checkup.py`, which lists the checks of a hub's data; `running_hub.py` has those of a running hub.
"""

__all__ = ["check_result", "checkup", "running_hub"]
