"""Check the subject of a commit message: `python -m tests.commit_subject FILE`. A hook of pre-commit and a test use it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LENGTH_MAX = 72
# Subjects that git generates.
_MADE_BY_GIT = re.compile(r"(?:Merge|Revert|fixup!|squash!) ")


def fault(subject: str) -> str | None:
    """Return the problem with a subject, or None."""
    if not subject.strip():
        return "the subject is empty"
    if len(subject) > LENGTH_MAX and not _MADE_BY_GIT.match(subject):
        return (
            f"the subject has {len(subject)} characters, at most {LENGTH_MAX} are allowed; move the reason to the body"
        )
    if subject.endswith("."):
        return "the subject ends in a full stop"
    return None


def main(file: str) -> int:
    subject = Path(file).read_text("utf-8").partition("\n")[0]
    found = fault(subject)
    if found is not None:
        print(f"commit message: {found}: {subject!r}")  # noqa: T201  # what a hook is for
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
