"""Imports under the module names of 0.1: `import onceward.db.engine` gives `onceward.hub.db.engine` and warns.

`core/moved.py` has the table. The finder is the first on `sys.meta_path`. An old package is the same object as the new
one and has its path, so the standard finders would load a second copy of each of its modules under the old name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from onceward.core.moved import MOVED, current_name


class _Finder:
    """Finder for the modules of the table, and for the modules of its packages, under their old names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        if not name.startswith("onceward."):
            return None
        new = current_name(name)
        if new == name or (name not in MOVED and importlib.util.find_spec(new) is None):
            return None
        parent, _, child = name.rpartition(".")
        if not isinstance(vars(sys.modules[parent]).get(child, sys), ModuleType):
            # The import system sets the module as an attribute of its package. Here that would replace a function of
            # the same name: `onceward.turns.tool`.
            raise ModuleNotFoundError(f"{name} is now {new}; import it from there", name=name)
        return ModuleSpec(name, _Loader())


class _Loader(importlib.abc.Loader):
    """Loader that returns the module itself, not a copy, so that its classes are the same under both names."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = current_name(spec.name)
        warnings.warn(f"{spec.name} is now {new}; import it from there", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system replaced by that of the old name. Run nothing."""
        module.__spec__ = self._spec


sys.meta_path.insert(0, _Finder)
