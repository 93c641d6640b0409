"""Every message that a person can read, collected from the source. `python -m tests.messages` writes docs/messages.md.

A message is a string literal of prose in one of these positions:

* an argument of an exception, or of a function that builds one: its code is that of the exception,
* an argument of `problem(...)`: its code is the problem's,
* the name of a log event,
* an argument of a function that prints, or the help of a command,
* the description of a route, a parameter or a field of the API.

Prose elsewhere is a part of one of these. It is listed with the code of the function that uses it, where one can be found.
`tests/test_messages.py` fails when the page is out of date, and when a code has no advice.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.layout import ROOT, Module, package
from tests.message_advice import ADVICE, STATUS_CODES

PAGE = ROOT / "docs" / "messages.md"

LOG = "log events"
PRINTED = "command line: output"
HELP = "command line: help"
API = "API descriptions"
PART = "parts of messages"

# Functions whose texts are not prose: SQL, patterns, types, names of threads, data.
_DATA_CALLS = frozenset({
    "text", "execute", "executemany", "executescript", "exec_driver_sql", "compile", "cast", "TypeVar", "CheckConstraint",
    "RawStatement", "MultiRowStatement", "Index", "_index", "DDL", "_names", "split", "join", "create_task", "startswith", "endswith", "encode",
    "getattr", "literal_column", "Thread", "removeprefix", "removesuffix", "replace", "write", "Bucket", "check_key", "run",
    "fromkeys_data", "sub", "Command", "source_time", "in_thread", "_block", "quoted",
})  # fmt: skip
_PRINTING = frozenset({"echo", "secho", "print", "_print_error", "progress", "TextColumn", "write_line", "confirm"})
_HELP_CALLS = frozenset({"option", "argument", "command", "group", "Choice"})
_API_CALLS = frozenset({
    "Field", "Query", "Path", "Header", "Body", "Cookie", "File", "Form", "get", "post", "put", "delete", "patch", "FastAPI",
    "APIRouter", "Counter", "Gauge", "Histogram", "api_route", "websocket",
})  # fmt: skip
_SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|SET|BEGIN|COMMIT|ROLLBACK|WITH|PRAGMA|LOCK|NOTIFY|LISTEN|GRANT|REVOKE|"
    r"SAVEPOINT|RELEASE|EXPLAIN|VACUUM|ANALYZE|ON CONFLICT|ORDER BY|WHERE|FOR (?:KEY|UPDATE|NO)|AND |OR |--)\b"
)
# Three words in a row, the last of them in lower case: prose, and not a path or a list of names.
_PROSE = re.compile(r"(?:^|[\s(])[A-Za-z'-]+,? (?:[a-z'-]+|\{[^}]*\}),? [a-z'-]+")
# Modules whose constants are data, or texts of one kind.
_DATA_MODULES = (
    "onceward.hub.media.extensions",
    "onceward.hub.db.tables",
    "onceward.hub.db.migrations",
    "onceward.testing.rules",
)
_API_MODULES = (
    "onceward.http.openapi", "onceward.http.metrics", "onceward.hub.openapi", "onceward.hub.routes",
    "onceward.hub.web.ingest_bodies", "onceward.hub.web.task_bodies", "onceward.hub.web.metrics",
)  # fmt: skip
_HELP_MODULES = ("onceward.cli.settings",)


# Their texts are printed as they are, whatever builds them.
_PRINTED_MODULES = ("onceward.hub.doctor", "onceward.cli.demo")


class Message(NamedTuple):
    """A message, the code or the kind it belongs to, and the function that has it."""

    code: str
    text: str
    where: str


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, with the names of its placeholders in braces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_placeholder(part)}}}" for part in node.values
        )
    return None


def _placeholder(part: ast.expr) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    names = [node for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute)]
    if isinstance(value, ast.Name | ast.Attribute) or not names:
        return ast.unparse(value).removeprefix("self.").lstrip("_") if names else "…"
    first = names[0]
    if isinstance(value, ast.Call) and value.args:
        inner = [node for node in ast.walk(value.args[0]) if isinstance(node, ast.Name | ast.Attribute)]
        first = inner[0] if inner else first
    return ast.unparse(first).removeprefix("self.").lstrip("_")


class Codes:
    """The codes of exceptions, and of the functions that build or raise one kind of them."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self._bases: dict[str, str] = {}
        self._codes: dict[str, str] = {}
        self._functions: dict[str, set[str]] = defaultdict(set)
        trees = [module.tree for module in modules]
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._add_class(node)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._functions[node.name] |= {
                        code for call in ast.walk(node) if isinstance(call, ast.Call) and (code := self._of_class(call))
                    }

    def _add_class(self, node: ast.ClassDef) -> None:
        if node.bases:
            self._bases[node.name] = ast.unparse(node.bases[0]).rpartition(".")[2]
        for line in node.body:
            match line:
                case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str() as code)):
                    self._codes[node.name] = code
                case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str() as code)):
                    self._codes[node.name] = code
                case _:
                    pass

    def _of_class(self, call: ast.Call) -> str | None:
        name = name_of(call)
        base, seen = name, set[str]()
        while base not in self._codes and base in self._bases and base not in seen:
            seen.add(base)
            base = self._bases[base]
        if base in self._codes:
            return self._codes[base]
        is_exception = base.endswith(("Error", "Exception", "Warning", "Error_")) or base in {
            "UsageError",
            "BadParameter",
        }
        return name if is_exception and name[:1].isupper() else None

    def of(self, call: ast.Call) -> str | None:
        """The code of the exception or problem that this call builds, if that is one code."""
        code = _problem_code(call) if name_of(call) == "problem" else self._of_class(call)
        if code is not None:
            return code
        found = self._functions.get(name_of(call), set())
        return next(iter(found)) if len(found) == 1 else None


def _problem_code(call: ast.Call) -> str | None:
    given = [*call.args[2:3], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
    for value in given:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value or None
    if call.args and isinstance(call.args[0], ast.Constant):
        return STATUS_CODES.get(call.args[0].value) if isinstance(call.args[0].value, int) else None
    return None


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def collect(modules: Iterable[Module]) -> Iterator[Message]:
    """Every message of these modules, in the order of the source."""
    modules = list(modules)
    codes = Codes(modules)
    for module in modules:
        yield from _Reader(module, codes).messages()


class _Reader:
    """The messages of one module."""

    def __init__(self, module: Module, codes: Codes) -> None:
        self._module = module
        self._codes = codes
        self._parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(module.tree) for child in ast.iter_child_nodes(node)
        }

    def messages(self) -> Iterator[Message]:
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.Call) and name_of(node) == "log_event":
                yield self._log_event(node)
            text = text_of(node)
            if text is None or isinstance(self._parents[node], ast.JoinedStr):
                continue
            if not _PROSE.search(text) or _SQL.match(text) or self._module.name.startswith(_DATA_MODULES):
                continue
            kind = self._kind(node)
            if kind is not None and self._module.name.startswith(_PRINTED_MODULES):
                kind = PRINTED
            if kind is not None:
                yield Message(kind, " ".join(text.split()), self._where(node))

    def _log_event(self, call: ast.Call) -> Message:
        name = text_of(call.args[1]) or ast.unparse(call.args[1])
        fields = [keyword.arg or "…" for keyword in call.keywords if keyword.arg != "hint"]
        hints = [text_of(keyword.value) or "" for keyword in call.keywords if keyword.arg == "hint"]
        level = ast.unparse(call.args[0]).rpartition(".")[2]
        shown = f"`{name}` ({level})" + (": " + ", ".join(fields) if fields else "")
        return Message(LOG, ". ".join([shown, *filter(None, hints)]), self._where(call))

    def _kind(self, node: ast.AST) -> str | None:
        """Return the code, or the kind of message, of a literal; None if it is not a message."""
        child, parent = node, self._parents[node]
        while not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Subscript | ast.Compare | ast.match_case):
                return None
            if isinstance(parent, ast.Call) and child is not parent.func:
                name = name_of(parent)
                if name == "log_event" or name in _DATA_CALLS:
                    return None
                if name in _PRINTING:
                    return PRINTED
                if self._is_command(parent):
                    return HELP
                if name in _API_CALLS and self._module.name.startswith("onceward.hub"):
                    return API
                code = self._codes.of(parent)
                if code is not None:
                    return code
            child, parent = parent, self._parents[parent]
        if isinstance(parent, ast.Expr) and parent.value is node:
            return self._docstring_kind(parent)
        if isinstance(parent, ast.AnnAssign) and child is parent.annotation:
            return None
        return self._kind_of_use(parent)

    def _is_command(self, call: ast.Call) -> bool:
        return name_of(call) in _HELP_CALLS and self._module.name.startswith("onceward.cli")

    def _docstring_kind(self, statement: ast.Expr) -> str | None:
        """Return the kind of a docstring: that of a command is its help, that of a route its description."""
        parent = self._parents[statement]
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.body[0] is statement:
            decorators = [one for one in parent.decorator_list if isinstance(one, ast.Call)]
            if any(self._is_command(one) for one in decorators):
                return HELP
            if any(name_of(one) in _API_CALLS for one in decorators):
                return API
        return None

    def _kind_of_use(self, statement: ast.stmt) -> str | None:
        """The code of the one call that a constant is used by, or of the function that the text is in."""
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            found = {
                code
                for use in ast.walk(self._function_of(statement))
                if isinstance(use, ast.Name) and use.id == name and isinstance(use.ctx, ast.Load)
                for code in self._calls_around(use)
            }
            if len(found) == 1:
                return found.pop() or PART
        if isinstance(statement, ast.Assert | ast.For | ast.Match | ast.While | ast.Delete):
            return None
        if self._module.name.startswith(_API_MODULES):
            return API
        return HELP if self._module.name.startswith(_HELP_MODULES) else PART

    def _function_of(self, node: ast.AST) -> ast.AST:
        while node in self._parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node = self._parents[node]
        return node

    def _calls_around(self, node: ast.AST) -> Iterator[str]:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
            if isinstance(node, ast.Call) and (code := self._codes.of(node)) is not None:
                yield code
                return

    def _where(self, node: ast.AST) -> str:
        """`http/problem.py`, and the function or class that the literal is in."""
        names: list[str] = []
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(node.name)
        path = self._module.path.relative_to(ROOT / "src" / "onceward").as_posix()
        return f"{path} {'.'.join(reversed(names))}".strip()


def page(messages: Iterable[Message]) -> str:
    """Return the text of docs/messages.md."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for message in messages:
        where = found[message.code][message.text]
        if message.where not in where:
            where.append(message.where)
    kinds = (LOG, PRINTED, HELP, API, PART)
    codes = sorted((code for code in found if code not in kinds), key=str.lower)
    lines = [
        "# Messages",
        "",
        "Every message of the library, the hub and the command line, by its code. This page is generated from the source:",
        "`make messages` writes it, and a test fails when it is out of date. Names in braces stand for values.",
        "",
        "Programs compare codes, never texts: a code does not change, and a text may improve.",
        "",
    ]
    for code in (*codes, *(kind for kind in kinds if kind in found)):
        title = code if code in kinds else f"`{code}`"
        lines += [f"## {title[:1].upper()}{title[1:]}", ""]
        if ADVICE.get(code):
            label = "" if code in kinds else "**What to do:** "
            lines += [f"{label}{ADVICE[code]}", ""]
        lines += ["| Text | Where |", "| --- | --- |"]
        for text, where in sorted(found[code].items(), key=lambda one: (one[1][0], one[0])):
            lines.append(f"| {_cell(text)} | {', '.join(f'`{place}`' for place in where)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_\[\]\\])", r"\\\1", text) if "`" not in text else text.replace("|", "\\|")


def main() -> int:
    PAGE.write_text(page(collect(package().values())), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
