"""How the metadata of an update comes together with what is stored. Pure."""

from __future__ import annotations

from onceward.core.canonical import Json


def merged(stored: Json, incoming: Json) -> Json:
    """Objects merge, name by name and at every depth. Everything else replaces what was there: a list as a whole, and
    an explicit null too. What only one of the two has stays. Neither of them is changed.
    """
    if not isinstance(stored, dict) or not isinstance(incoming, dict):
        return incoming
    result = dict(stored)
    for name, value in incoming.items():
        result[name] = merged(stored[name], value) if name in stored else value
    return result
