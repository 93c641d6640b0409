"""The Python blocks that their page does not run, because they need a server or a process: tests execute each of them.

`unrun_block("docs/guides/ledger.md", "import asyncpg")` finds one, and `execute` runs its own text. A test of
`tests/test_unrun_blocks.py` finds these calls in the sources of the tests, and fails if a block has none.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path

from tests.markdown import DO_NOT_RUN, Block, blocks

ROOT = Path(__file__).parent.parent


def unrun_block(page: str, words: str) -> Block:
    """Return the one block of the page that contains these words."""
    (block,) = [block for block in blocks(ROOT / page) if block.kind == DO_NOT_RUN and words in block.text]
    return block


def changed(block: Block, changes: Mapping[str, str]) -> str:
    """Return the text of a block with other addresses, on its original lines: a traceback points into the document."""
    text = block.text
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return "\n" * block.line + text


def execute(block: Block, names: dict[str, object], changes: Mapping[str, str] | None = None) -> list[str]:
    """Run a block with the names that a reader has, and return the lines that it printed."""
    names.setdefault("__name__", "unrun_block")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(changed(block, changes or {}), "<block>", "exec"), names)  # noqa: S102
    return output.getvalue().splitlines()
