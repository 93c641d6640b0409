"""Arguments that are JSON, read as strictly as the hub reads a body."""

from __future__ import annotations

import json
from typing import Any

import click


def json_argument(text: str, option: str) -> Any:
    """The value of a JSON text; `click.BadParameter` for text that two parsers could read differently."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise click.BadParameter("it is nested too deeply", param_hint=option) from None
    except UnicodeEncodeError:
        raise click.BadParameter("it contains a lone surrogate, which is not text", param_hint=option) from None
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint=option) from None
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is in it twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
