"""The rule for commit subjects can fail, and its message says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commit_subject import fault, main


@pytest.mark.parametrize("subject", ["http: refuse @idempotent without a middleware", "x" * 72, "Merge " + "x" * 90])
def test_a_subject_that_is_short_enough_passes(subject: str) -> None:
    assert fault(subject) is None


@pytest.mark.parametrize(
    ("subject", "why"), [("x" * 73, "73 characters"), ("  ", "empty"), ("store: mend it.", "full stop")]
)
def test_any_other_subject_is_refused_with_the_reason(
    subject: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "message").write_text(f"{subject}\n\nA body may be as long as it likes.\n")

    assert main(str(tmp_path / "message")) == 1
    assert why in capsys.readouterr().out
