"""A search for patterns that may take more than linear time: two unbounded repetitions that can share the same characters.

Python's own parser takes a pattern apart. Repetitions that can follow each other, with nothing required between them, are
compared by the characters that both can match. False positives are possible.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _constants as sre
from re import _parser as parser
from typing import Any

_FUNCTIONS = frozenset({"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
# A sample of characters: each class of the pattern is compared on these.
_SAMPLE = "".join(map(chr, range(256))) + "\u0130\u0660\u2003\u4e2d\U0001f600"
# Where Unicode has characters for private use.
_PUT_IN = 0xE000
# More than this is as good as unbounded for a pattern that begins again at every place.
_BOUNDED_MAX = 256


def patterns(tree: ast.AST) -> Iterator[tuple[str | bytes, int, int]]:
    """Every constant that is given to a function of `re`: its text, its flags and its line.

    Where the function is given a variable, all constants of its statement count, as in a loop over patterns.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_use(node):
            text = _text(node.args[0])
            if text is not None:
                yield text, _flags_of(node), node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for use in ast.walk(node):
                if isinstance(use, ast.Call) and _is_use(use) and _text(use.args[0]) is None:
                    yield from ((one, _flags_of(use), line) for one, line in _constants(node))


def _is_use(node: ast.Call) -> bool:
    if not (isinstance(node.func, ast.Attribute) and node.args):
        return False
    of = node.func.value
    return isinstance(of, ast.Name) and of.id == "re" and node.func.attr in _FUNCTIONS


def _flags_of(node: ast.Call) -> int:
    return _flags([*node.args[1:], *(word.value for word in node.keywords if word.arg == "flags")])


def _constants(tree: ast.AST) -> Iterator[tuple[str | bytes, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            try:
                parser.parse(node.value)
            except re.error:
                continue
            yield node.value, node.lineno


def _text(node: ast.expr) -> str | bytes | None:
    """Return the constant part of a string. An inserted value counts as one character."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = enumerate(node.values)
        return "".join(str(part.value) if isinstance(part, ast.Constant) else chr(_PUT_IN + at) for at, part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_text(side) for side in (node.left, node.right)]
        if all(isinstance(side, str) for side in sides):
            return "".join(map(str, sides))
    return None


def _flags(nodes: list[ast.expr]) -> int:
    found = 0
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "re":
                found |= int(getattr(re, part.attr, 0))
    return found


def slow(pattern: str | bytes, flags: int = 0) -> list[str]:
    """Return why this pattern may take more than linear time; empty if it does not."""
    tree = parser.parse(pattern, flags)
    found: list[str] = []
    _Walk(flags | tree.state.flags, found).sequence(list(tree), frozenset())
    return sorted(set(found))


@dataclass(frozen=True, slots=True)
class _Walk:
    """Goes through a pattern from left to right with the characters that an unbounded repetition may still take."""

    flags: int
    found: list[str]

    def sequence(self, items: list[Any], before: frozenset[str]) -> frozenset[str]:
        for operator, argument in items:
            before = self.item(operator, argument, before)
        return before

    def item(self, operator: Any, argument: Any, before: frozenset[str]) -> frozenset[str]:
        if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self.repeat(argument, before)
        if operator is sre.POSSESSIVE_REPEAT:
            # It gives nothing back, but may be gone through again for what was before.
            self.repeat(argument, before)
            return frozenset()
        if operator is sre.SUBPATTERN:
            return self.sequence(list(argument[3]), before)
        if operator is sre.ATOMIC_GROUP:
            self.sequence(list(argument), frozenset())
            return frozenset()
        if operator is sre.BRANCH:
            return frozenset().union(*(self.sequence(list(branch), before) for branch in argument[1]))
        if operator in (sre.ASSERT, sre.ASSERT_NOT):
            self.sequence(list(argument[1]), frozenset())
            return before
        if operator is sre.AT:
            return before
        # A character that is required: what was before goes on if it can take that one, too.
        return before if before & self.characters([(operator, argument)]) else frozenset()

    def repeat(self, argument: Any, before: frozenset[str]) -> frozenset[str]:
        low, high, inner = argument
        own = self.characters(list(inner))
        unbounded = high is sre.MAXREPEAT or high > _BOUNDED_MAX
        inside = self.sequence(list(inner), before)
        if not unbounded:
            # Where it is left out, what was before goes on.
            return inside | (before if low == 0 else frozenset())
        begins = self.first(list(inner))
        if inside & begins:
            self.found.append("an unbounded repetition inside another, or one that meets itself")
        if before & begins:
            self.found.append("two unbounded repetitions next to each other can match the same characters")
        if self.can_be_empty(list(inner)):
            self.found.append("a repetition of what can be empty")
        if self.is_ambiguous(list(inner)):
            self.found.append("a repetition of alternatives that begin alike")
        return own | (before if low == 0 else before & own)

    def is_ambiguous(self, items: list[Any]) -> bool:
        """Return whether alternatives in it begin alike."""
        for operator, argument in items:
            if operator is sre.BRANCH:
                starts = [self.first(list(branch)) for branch in argument[1]]
                if any(one & other for at, one in enumerate(starts) for other in starts[:at]):
                    return True
                inner = [item for branch in argument[1] for item in branch]
            elif operator is sre.SUBPATTERN:
                inner = list(argument[3])
            elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
                inner = list(argument[2])
            else:
                continue
            if self.is_ambiguous(inner):
                return True
        return False

    def can_be_empty(self, items: list[Any]) -> bool:
        return parser_width(items)[0] == 0

    def first(self, items: list[Any]) -> frozenset[str]:
        """The characters that it can begin with."""
        found: frozenset[str] = frozenset()
        for operator, argument in items:
            if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
                found |= self.first(list(argument[2]))
                if argument[0] == 0 or self.can_be_empty(list(argument[2])):
                    continue
                return found
            if operator is sre.SUBPATTERN:
                inner = list(argument[3])
                found |= self.first(inner)
                if self.can_be_empty(inner):
                    continue
                return found
            if operator is sre.BRANCH:
                found |= frozenset().union(*(self.first(list(branch)) for branch in argument[1]))
                if any(self.can_be_empty(list(branch)) for branch in argument[1]):
                    continue
                return found
            if operator in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
                continue
            return found | self.characters([(operator, argument)])
        return found

    def characters(self, items: list[Any]) -> frozenset[str]:
        """Every character of the sample that can be somewhere in what these match."""
        found: frozenset[str] = frozenset()
        for operator, argument in items:
            if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
                found |= self.characters(list(argument[2]))
            elif operator is sre.SUBPATTERN:
                found |= self.characters(list(argument[3]))
            elif operator is sre.ATOMIC_GROUP:
                found |= self.characters(list(argument))
            elif operator is sre.BRANCH:
                found |= frozenset().union(*(self.characters(list(branch)) for branch in argument[1]))
            elif operator not in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
                found |= frozenset(one for one in _SAMPLE if self.takes(operator, argument, one))
        return found

    def takes(self, operator: Any, argument: Any, one: str) -> bool:
        same = {one, one.lower(), one.upper()} if self.flags & re.IGNORECASE else {one}
        if operator is sre.LITERAL:
            return chr(argument) in same
        if operator is sre.NOT_LITERAL:
            return chr(argument) not in same
        if operator is sre.ANY:
            return one != "\n" or bool(self.flags & re.DOTALL)
        if operator is sre.IN:
            return self.is_in(argument, same)
        # A backreference and whatever else there is: anything.
        return True

    def is_in(self, members: list[Any], same: set[str]) -> bool:
        negated, found = False, False
        for operator, argument in members:
            if operator is sre.NEGATE:
                negated = True
            elif operator is sre.LITERAL:
                found = found or chr(argument) in same
            elif operator is sre.RANGE:
                found = found or any(argument[0] <= ord(one) <= argument[1] for one in same if len(one) == 1)
            elif operator is sre.CATEGORY:
                found = found or any(self.is_of(argument, one) for one in same if len(one) == 1)
        return found != negated

    def is_of(self, category: Any, one: str) -> bool:
        name = str(category).removeprefix("CATEGORY_")
        plain, letter = name.removeprefix("NOT_"), {"DIGIT": "d", "SPACE": "s", "WORD": "w"}
        matched = re.match(f"\\{letter[plain]}", one, self.flags & re.ASCII) is not None
        return matched != name.startswith("NOT_")


def parser_width(items: list[Any]) -> tuple[int, int]:
    """The shortest and the longest text that these match."""
    built = parser.SubPattern(parser.State(), items)
    low, high = built.getwidth()
    return low, high
