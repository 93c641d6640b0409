"""Every log event of the package, read from its source: its logger, name, levels and fields.

An event is a call of `log_event` or `log_line`, or of a logger's own method with a name as its text and its fields in
`extra=`.
`tests/test_reference_names.py` compares the events with the table in docs/reference.md.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.layout import Module
from tests.messages import name_of, text_of

LEVELS = frozenset({"debug", "info", "warning", "error", "critical"})
# A name in an expression that this module cannot resolve. No row of the table matches it, so the test names it.
UNKNOWN = "?"
# The field that says what to do. The table leaves it out.
HINT = "hint"


class LogEvents(NamedTuple):
    """All places that log the same event: their levels in upper case, and their fields."""

    levels: frozenset[str]
    fields: frozenset[str]


def log_events(modules: Iterable[Module]) -> dict[tuple[str, str], LogEvents]:
    """Return every event of these modules, by the name of its logger and its own."""
    levels, fields = defaultdict[tuple[str, str], set[str]](set), defaultdict[tuple[str, str], set[str]](set)
    for module in modules:
        for function in _functions(module.tree):
            for call in _calls(function, module.tree):
                for event in _names(call, function):
                    place = _logger(call, module.tree), event
                    levels[place].add(_method(call).attr.upper())
                    fields[place] |= set(_fields(call, function, module.tree)) - {HINT}
    return {place: LogEvents(frozenset(levels[place]), frozenset(fields[place])) for place in levels}


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _calls(function: ast.AST, tree: ast.Module) -> Iterator[ast.Call]:
    """Return every call in this function that logs an event."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="log_event"), args=[ast.Attribute(), _, *_]):
                yield node
            case ast.Call(func=ast.Name(id="log_line"), args=[logger, name, fields]):
                # The same as a call of the logger's `info`, only faster.
                yield ast.Call(ast.Attribute(logger, "info"), [name], [ast.keyword("extra", fields)])
            case ast.Call(func=ast.Attribute(attr=method), args=[_]) if (
                method in LEVELS and _logger(node, tree) != UNKNOWN
            ):
                yield node


def _method(call: ast.Call) -> ast.Attribute:
    """Return the method of the logger, such as `logger.warning`."""
    method = call.args[0] if name_of(call) == "log_event" else call.func
    assert isinstance(method, ast.Attribute)
    return method


def _names(call: ast.Call, function: ast.AST) -> list[str]:
    """The names that the event may have: one literal, or a choice between literals that was assigned before."""
    given = call.args[1] if name_of(call) == "log_event" else call.args[0]
    values = [given] if text_of(given) else [_assigned(function, given)]
    if isinstance(values[0], ast.IfExp):
        values = [values[0].body, values[0].orelse]
    return [text_of(value) or UNKNOWN if value is not None else UNKNOWN for value in values]


def _fields(call: ast.Call, function: ast.AST, tree: ast.Module) -> Iterator[str]:
    if name_of(call) == "log_event":
        for keyword in call.keywords:
            yield from [keyword.arg] if keyword.arg else _keys(keyword.value, function, tree)
    else:
        for keyword in call.keywords:
            yield from _keys(keyword.value, function, tree) if keyword.arg == "extra" else ()


def _keys(value: ast.expr | None, function: ast.AST, tree: ast.Module) -> Iterator[str]:
    """The keys of a dict: of a literal, of a local name, or of what a function of the module returns."""
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, inner in zip(keys, values, strict=True):
                yield from [text_of(key) or UNKNOWN] if key is not None else _keys(inner, function, tree)
        case ast.Name():
            yield from _keys(_assigned(function, value), function, tree)
        case ast.Call(func=ast.Name(id=name)):
            made = next((one for one in _functions(tree) if one.name == name), None)
            returns = [] if made is None else [one for one in ast.walk(made) if isinstance(one, ast.Return)]
            for one in returns:
                yield from _keys(one.value, one, tree)
            if not returns:
                yield UNKNOWN
        case _:
            yield UNKNOWN


def _logger(call: ast.Call, tree: ast.Module) -> str:
    """Return the name that `getLogger` got for the logger of this call."""
    made = _assigned(tree, _method(call).value)
    if not isinstance(made, ast.Call) or name_of(made) != "getLogger":
        return UNKNOWN
    name = made.args[0]
    return text_of(name) or text_of(_assigned(tree, name) or name) or UNKNOWN


def _assigned(scope: ast.AST, target: ast.expr) -> ast.expr | None:
    """Return the value that a name or an attribute is assigned in a module or a function."""
    wanted = ast.unparse(target)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == wanted:
            return node.value
    return None


def table(text: str) -> Mapping[tuple[str, str], LogEvents]:
    """Return the rows of the table of log events in the text of a document."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 5 and cells[0].startswith("`onceward"):  # logger, event, level, fields, when
            logger, event, levels, fields = cells[:4]
            found[_words(logger)[0], _words(event)[0]] = LogEvents(
                frozenset(levels.split(", ")), frozenset(_words(fields))
            )
    return found


def _words(cell: str) -> list[str]:
    return [word.strip("`") for word in cell.split(", ") if word.startswith("`")]
