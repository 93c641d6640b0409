"""Accuracy over the corpus against the goals, and against the figures in the guide."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.media import accuracy, corpus

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "media-types.md"


def test_the_corpus_has_at_least_sixty_types_in_several_variants() -> None:
    cases = corpus.cases()

    assert len({case.media_type for case in cases}) >= 60
    assert len(cases) >= 5 * len({case.media_type for case in cases})
    assert len({(case.name, case.filename) for case in cases}) == len(cases)


@pytest.mark.parametrize("detect", [accuracy.with_libmagic, accuracy.built_in], ids=["with libmagic", "built in"])
def test_types_are_nearly_always_exact_and_hardly_ever_wrong(detect: accuracy.Detect) -> None:
    measured = accuracy.scores(detect)[accuracy.ALL]

    assert measured.exact_percent >= 94
    assert measured.wrong_percent <= 2.5


def test_the_guide_has_the_measured_figures() -> None:
    assert accuracy.table() in GUIDE.read_text("utf-8")
