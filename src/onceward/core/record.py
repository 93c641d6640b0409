"""`@record`: a small immutable value with named fields.

The type checker sees `@dataclass(frozen=True, slots=True)` and refuses assignments. At run time assignments are not
prevented: a frozen dataclass sets each field with a separate call and takes nine times as long to create. A keyed call
creates a dozen records, so freezing would cost a fifth of all the time spent in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from collections.abc import Callable
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        """Make a class written as `@record(frozen=True, slots=True)` a dataclass with equality and a hash by fields."""
        if not (frozen and slots):
            raise TypeError("a record must be declared with frozen=True and slots=True")
        return dataclass(slots=True, unsafe_hash=True)


__all__ = ["record"]
