"""Reuse declarations: when each artifact of a brain may be reused.

    reuse_decl = {
        "parsing":     {"scope": "same_input"},
        "intents":     {"scope": "same_input_same_dep", "ttl_seconds": 600},
        "tool_plan":   {"scope": "same_input_same_dep", "requires_revalidate": True},
        "tool_results": {"scope": "never"},
    }

An artifact without a declaration is always computed. Results of tools are not artifacts: the ledger replays them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidOption
from onceward.ledger.terms import RETAIN_SECONDS_MAX, check_seconds

# Longer than a conversation, but short enough to limit the damage of a wrong declaration.
ARTIFACT_SECONDS = 24 * 3600.0
# The chat contract's name for the results of tools, which only the ledger may replay.
TOOL_RESULTS = "tool_results"

_KNOWN = frozenset({"scope", "requires_revalidate", "ttl_seconds", "revalidate"})


class Scope(enum.StrEnum):
    """Condition under which an artifact may be reused."""

    SAME_INPUT = "same_input"
    SAME_INPUT_SAME_DEP = "same_input_same_dep"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Reuse rule of one artifact. `revalidate` is called with the value and returns whether it is still valid."""

    scope: Scope
    requires_revalidate: bool = False
    ttl_seconds: float = ARTIFACT_SECONDS
    revalidate: Callable[[Any], Any] | None = None


def reuse_rules(declared: Mapping[str, Mapping[str, object]]) -> dict[str, Reuse]:
    """Return the rules by the names of the artifacts. Raises `InvalidOption` for a declaration that is not valid."""
    return {name: _rule(name, found) for name, found in declared.items()}


def _rule(name: str, found: Mapping[str, object]) -> Reuse:
    if not isinstance(found, Mapping) or "scope" not in found:
        raise InvalidOption(f"reuse of {name!r} must be a mapping with a scope, {{'scope': …}}, got {found!r}")
    unknown = found.keys() - _KNOWN
    if unknown:
        raise InvalidOption(
            f"unknown option {min(unknown)!r} in the reuse of {name!r}; the options are {', '.join(sorted(_KNOWN))}"
        )
    try:
        scope = Scope(str(found["scope"]))
    except ValueError as error:
        raise InvalidOption(
            f"the scope of {name!r} must be one of {', '.join(Scope)}, got {found['scope']!r}"
        ) from error
    if name == TOOL_RESULTS and scope is not Scope.NEVER:
        raise InvalidOption(f"the scope of {TOOL_RESULTS!r} must be 'never': the ledger replays the results of tools")
    must, hook = found.get("requires_revalidate", False), found.get("revalidate")
    if not isinstance(must, bool):
        raise InvalidOption(f"requires_revalidate of {name!r} must be True or False, got {must!r}")
    if hook is not None and not callable(hook):
        raise InvalidOption(f"revalidate of {name!r} must be a function, got {hook!r}")
    ttl = found.get("ttl_seconds", ARTIFACT_SECONDS)
    return Reuse(scope, must, check_seconds("ttl_seconds", ttl, RETAIN_SECONDS_MAX, positive=True), hook)
