"""`@record`: a small value with named fields, never changed once it is made.

The type checker sees `@dataclass(frozen=True, slots=True)` and refuses assignments. At run time nothing stands in the way:
a frozen dataclass sets each field by a call of its own and takes nine times as long to make, which on the busiest
path there is (a keyed call makes a dozen of them) is a fifth of all the time spent in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from collections.abc import Callable
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        """For classes that say `@record(frozen=True, slots=True)`; equal by their fields, and hashable."""
        if not (frozen and slots):
            raise TypeError("a record is frozen and has slots")
        return dataclass(slots=True, unsafe_hash=True)


__all__ = ["record"]
