"""JSON arguments, parsed as strictly as the hub parses a request body."""

from __future__ import annotations

import json
from typing import Any

import click


def json_argument(text: str, option: str) -> Any:
    """Parse JSON, or raise `click.BadParameter` if it is invalid or if two parsers could read it differently."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise click.BadParameter("the JSON is nested too deeply", param_hint=option) from None
    except UnicodeEncodeError:
        raise click.BadParameter(
            "the JSON contains a lone surrogate, which is not valid text", param_hint=option
        ) from None
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint=option) from None
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
