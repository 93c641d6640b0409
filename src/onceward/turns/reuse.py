"""What a brain declares about using its artifacts again. The brain knows what they mean; this only enforces it.

    reuse_decl = {
        "parsing":     {"scope": "same_input"},
        "intents":     {"scope": "same_input_same_dep", "ttl_seconds": 600},
        "tool_plan":   {"scope": "same_input_same_dep", "requires_revalidate": True},
        "tool_results": {"scope": "never"},
    }

What is not declared is never used again. Results of tools are not artifacts: the ledger of the tools has them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidOption
from onceward.terms import RETAIN_SECONDS_MAX, check_seconds

# Longer than a conversation, and short enough that a mistake in a declaration does not live on.
ARTIFACT_SECONDS = 24 * 3600.0
# The seed's name for what only the ledger of the tools may give again.
TOOL_RESULTS = "tool_results"

_KNOWN = frozenset({"scope", "requires_revalidate", "ttl_seconds", "revalidate"})


class Scope(enum.StrEnum):
    """When an artifact may be used again."""

    SAME_INPUT = "same_input"
    SAME_INPUT_SAME_DEP = "same_input_same_dep"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Reuse:
    """How one artifact may be used again. `revalidate` is asked with the value, and answers whether it still holds."""

    scope: Scope
    requires_revalidate: bool = False
    ttl_seconds: float = ARTIFACT_SECONDS
    revalidate: Callable[[Any], Any] | None = None


def reuse_rules(declared: Mapping[str, Mapping[str, object]]) -> dict[str, Reuse]:
    """The rules by the artifacts' names; `InvalidOption` says what of the declaration cannot work."""
    return {name: _rule(name, found) for name, found in declared.items()}


def _rule(name: str, found: Mapping[str, object]) -> Reuse:
    if not isinstance(found, Mapping) or "scope" not in found:
        raise InvalidOption(f"reuse of {name!r} is declared as {{'scope': …}}, not {found!r}")
    unknown = found.keys() - _KNOWN
    if unknown:
        raise InvalidOption(f"reuse of {name!r} knows no {min(unknown)!r}; it has {', '.join(sorted(_KNOWN))}")
    try:
        scope = Scope(str(found["scope"]))
    except ValueError as error:
        raise InvalidOption(f"the scope of {name!r} is one of {', '.join(Scope)}, not {found['scope']!r}") from error
    if name == TOOL_RESULTS and scope is not Scope.NEVER:
        raise InvalidOption(f"{TOOL_RESULTS!r} are never artifacts: the ledger of the tools gives them again")
    must, hook = found.get("requires_revalidate", False), found.get("revalidate")
    if not isinstance(must, bool):
        raise InvalidOption(f"requires_revalidate of {name!r} is true or false, not {must!r}")
    if hook is not None and not callable(hook):
        raise InvalidOption(f"revalidate of {name!r} is a function, not {hook!r}")
    ttl = found.get("ttl_seconds", ARTIFACT_SECONDS)
    return Reuse(scope, must, check_seconds("ttl_seconds", ttl, RETAIN_SECONDS_MAX, positive=True), hook)
