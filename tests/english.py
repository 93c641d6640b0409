"""A search for sentences that need a second reading, in everything that people read.

`python -m tests.english [FOLDER OR FILE ...]` prints each one with its place and the reason. It reads docstrings,
comments and string literals of the source, docstrings, comments and names of the tests, and the prose of the documents.
`tests/test_english.py` fails on any that is not in the list of exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("*.md", "docs/**/*.md", "bench/*.md", "examples/**/*.md", "src/**/*.md")
SOURCES = ("src/**/*.py", "src/**/*.sql", "src/**/*.lua", "src/**/*.js", "examples/**/*.py", "bench/**/*.py")
TESTS = ("tests/**/*.py",)
# These two contain the bad sentences themselves.
OWN = {"english.py", "test_english.py"}

# A pattern, and what to write instead.
PATTERNS = {
    "a question word as the subject": re.compile(
        r"(?:^|[.:;!] )(?:Who|Whoever|Whose|Whom|What|Whatever|Nobody)\b(?![^.?!]*\?)"
    ),
    "'whoever' or 'whosoever'": re.compile(r"\bwho(?:so)?ever\b", re.IGNORECASE),
    "'is no X': write 'is not a valid X' or 'does not have X'": re.compile(
        r"\b(?:is|are|was|were|be|been|being) no (?!longer\b|more\b|less\b|different\b|later\b|earlier\b)\w+"
    ),
    "'anew': write 'again'": re.compile(r"\banew\b", re.IGNORECASE),
    "'so many', 'so long', 'so much', 'so often': write the number or 'this many'": re.compile(
        r"\bso (?:many|long|much|often|few)\b", re.IGNORECASE
    ),
    "'he' or 'his' for code": re.compile(r"\b(?:he|him|his|himself)\b"),
    "'that there is'": re.compile(r"\bthat there (?:is|are|was|were)\b"),
    "'for ever': write 'forever'": re.compile(r"\bfor ever\b"),
    "'hangs on': write 'depends on'": re.compile(r"\bh[au]ngs? on\b"),
    "'the seed': name the contract": re.compile(r"\b[Ss]eeds?\b"),
    "a private word in the name of a test": re.compile(
        r"^Test: .*\b(?:nobody|somebody|everybody|aboard|told of|said|spoken|looked at|ones own)\b"
    ),
}
# The simulator's seeds are random seeds.
NOT_IN_TESTS = {"'the seed': name the contract"}
# The first line of a docstring is an imperative or a noun phrase.
FIRST_LINE = re.compile(
    r"^(?:Whether|How|Where|When|Why|If|That|As|Not|Nothing|None of|Who|Whoever|What|Whatever|Nobody|Everybody|One who)\b"
)
FIRST_LINE_REASON = "a first line that is neither an imperative nor a noun phrase"


class Found(NamedTuple):
    """A sentence that needs a second reading."""

    path: str
    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}: {self.text}"


def main(arguments: list[str]) -> int:
    found = list(search(files(arguments)))
    for one in found:
        print(one)
    print(f"{len(found)} sentences need a second reading")
    return 1 if found else 0


def files(names: Iterable[str] = ()) -> Iterator[Path]:
    """Everything that people read, or the part of it under these folders and files."""
    wanted = [(ROOT / name).resolve() for name in names] or [ROOT]
    for pattern in (*DOCUMENTS, *SOURCES, *TESTS):
        for path in sorted(ROOT.glob(pattern)):
            # The generated page of messages repeats what the source says.
            if path.name != "messages.md" and path.name not in OWN and any(path.is_relative_to(one) for one in wanted):
                yield path


def search(paths: Iterable[Path]) -> Iterator[Found]:
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        for line, text, is_docstring in texts(path):
            for reason, pattern in PATTERNS.items():
                if name.startswith("tests/") and reason in NOT_IN_TESTS:
                    continue
                for match in pattern.finditer(text):
                    start = max(0, match.start() - 40)
                    yield Found(name, line, reason, text[start : match.end() + 60])
            if is_docstring and FIRST_LINE.match(text):
                yield Found(name, line, FIRST_LINE_REASON, text[:100])


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Every text that a person reads in this file: its line, the text, and whether it is a docstring."""
    content = path.read_text("utf-8")
    if path.suffix == ".py":
        is_test = path.is_relative_to(ROOT / "tests")
        yield from _python_texts(content, with_literals=not is_test)
    elif path.suffix == ".md":
        yield from _prose(content)
    else:
        for number, line in enumerate(content.splitlines(), 1):
            before, mark, comment = line.partition("--" if path.suffix in {".sql", ".lua"} else "//")
            if mark and before.count("'") % 2 == 0:
                yield number, comment.strip(), False


def _python_texts(content: str, *, with_literals: bool) -> Iterator[tuple[int, str, bool]]:
    comment, begins, follows = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("# noqa", "# type:", "# fmt:", "#!")):
            continue
        number, text = token.start[0], token.string.removeprefix("#").strip()
        is_next = number == follows and not token.line[: token.start[1]].strip()
        if comment and not is_next:
            yield begins, comment, False
            comment = ""
        comment, begins = (f"{comment} {text}", begins) if comment else (text, number)
        follows = number + 1
    if comment:
        yield begins, comment, False
    tree = ast.parse(content)
    docstrings = {id(node) for node in map(_docstring, ast.walk(tree)) if node is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if with_literals or id(node) in docstrings:
                yield node.lineno, " ".join(node.value.split()), id(node) in docstrings
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").replace("_", " ")
            yield node.lineno, f"Test: {words.capitalize()}", False


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return first.value
    return None


def _prose(content: str) -> Iterator[tuple[int, str, bool]]:
    """The paragraphs of a document, without its blocks of code."""
    paragraph, begins, is_code = "", 0, False
    for number, line in enumerate([*content.splitlines(), ""], 1):
        text = line.strip()
        fence = text.startswith(("```", "~~~"))
        ends = (
            fence or not text or text.startswith(("#", "|", "* ", "- ", "<")) or re.match(r"\d+\. ", text) is not None
        )
        if paragraph and ends:
            yield begins, paragraph, False
            paragraph = ""
        is_code ^= fence
        if not fence and not is_code and text:
            text = re.sub(r"^(?:[#*-]+|\d+\.|>) +", "", text).replace("| ", "").replace("**", "")
            paragraph, begins = (f"{paragraph} {text}", begins) if paragraph else (text, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
