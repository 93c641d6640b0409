"""The collection against four uploaders of the same contents, for ten seconds; `make soak-blobs` does it for longer."""

from __future__ import annotations

from tests.tasks.fire.race import collect_bytes_first, prove, run
from tests.tasks.vault import Vault

SECONDS = 10.0
# It takes a tenth of a second; on a busy machine longer.
BREAKING_SECONDS_MAX = 20.0


def test_the_collection_never_takes_what_an_upload_needs(vault: Vault) -> None:
    figures = prove(vault, SECONDS, seed=1)

    assert figures.uploads > 10, figures.line()
    assert figures.collected > 0, figures.line()


def test_the_other_way_round_it_does(vault: Vault) -> None:
    figures, _ = run(vault, BREAKING_SECONDS_MAX, seed=1, collection=collect_bytes_first)

    assert figures.broken > 0, figures.line()
