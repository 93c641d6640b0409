"""The collection against four uploaders of the same contents, for a moment; `make soak-blobs` does it for longer."""

from __future__ import annotations

import pytest
from tests.tasks.fire.race import collect_bytes_first, prove, run
from tests.tasks.vault import Vault

SECONDS = 2.0


def test_the_collection_never_takes_what_an_upload_needs(vault: Vault) -> None:
    figures = prove(vault, SECONDS, seed=1)

    assert figures.uploads > 20, figures.line()
    assert figures.collected > 5, figures.line()


@pytest.mark.parametrize("place", ["sqlite-folder"])
def test_the_other_way_round_it_does(vault: Vault) -> None:
    figures, audit = run(vault, SECONDS / 2, seed=1, collection=collect_bytes_first)

    assert figures.broken + len(audit.broken) > 0, figures.line()
