"""The verdicts of `s3_object` on a real S3 server."""

from __future__ import annotations

import hashlib
from typing import Any

import obstore
import pytest
from obstore.store import S3Store
from tests.reconcile.doubts import Doubt
from tests.servers.s3 import BUCKET, S3Server
from tests.servers.scripted_http import Hold, bind, scripted, url_of

from onceward import verdict
from onceward.errors import InvalidOption
from onceward.reconcile import s3_object

FINAL_SECONDS = 3600.0
CONTENT = b"a report"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def config(s3_server: S3Server) -> dict[str, Any]:
    return {"endpoint": s3_server.endpoint, "region": "us-east-1", "client_options": {"allow_http": True}}


@pytest.fixture
def uploaded(config: dict[str, Any]) -> str:
    """Upload the object of the key in doubt, and return its ETag."""
    stored = obstore.put(S3Store(BUCKET, **config), "reconciled/order 4/2.pdf", CONTENT)
    return str(stored["e_tag"])


URL = f"s3://{BUCKET}/reconciled/{{key}}.pdf"


def test_an_object_that_exists_settles_the_key(doubt: Doubt, config: dict[str, Any], uploaded: str) -> None:
    expected = {"path": "reconciled/order 4/2.pdf", "size": len(CONTENT), "etag": uploaded.strip('"')}

    assert doubt.run(s3_object(URL, config=config)) == doubt.run() == expected


def test_found_gives_the_value(doubt: Doubt, config: dict[str, Any], uploaded: str) -> None:
    assert uploaded
    assert doubt.run(s3_object(URL, config=config, found=lambda one: one["size"])) == len(CONTENT)


@pytest.mark.parametrize("matches", [True, False])
@pytest.mark.parametrize("by", ["etag", "sha256", "function"])
def test_only_the_expected_content_is_evidence(
    doubt: Doubt, config: dict[str, Any], uploaded: str, by: str, matches: bool
) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    right = {"etag": uploaded, "sha256": SHA256.upper(), "function": SHA256}[by]
    wanted = right if matches else right[::-1]
    options: dict[str, Any] = {"sha256": lambda _: wanted} if by == "function" else {by: wanted}
    reconcile = s3_object(URL, config=config, found=lambda _: "there", final_after_seconds=FINAL_SECONDS, **options)

    assert doubt.ask(reconcile) == (verdict.committed("there") if matches else verdict.unknown)


@pytest.mark.parametrize("wanted", [None, ""])
def test_without_the_expected_etag_the_verdict_is_unknown(
    doubt: Doubt, config: dict[str, Any], uploaded: str, wanted: str | None
) -> None:
    assert uploaded
    assert doubt.ask(s3_object(URL, config=config, etag=lambda _: wanted)) is verdict.unknown


def test_a_missing_object_is_final_only_after_the_deadline(doubt: Doubt, config: dict[str, Any]) -> None:
    url = f"s3://{BUCKET}/never/{{key}}"
    reconcile = s3_object(url, config=config, final_after_seconds=FINAL_SECONDS)

    assert doubt.ask(s3_object(url, config=config)) is verdict.unknown
    assert doubt.ask(reconcile) is verdict.pending
    doubt.clock.advance(FINAL_SECONDS)
    assert doubt.ask(reconcile) == verdict.not_committed(verdict.Final.DEADLINE_PASSED)
    assert doubt.run(reconcile) == "run 2"


def test_a_recovery_point_names_the_object(doubt: Doubt, config: dict[str, Any], uploaded: str) -> None:
    assert uploaded
    reconcile = s3_object(f"s3://{BUCKET}/{{recovery_point[path]}}", config=config, found=lambda one: one["path"])

    assert doubt.ask(reconcile, {"path": "reconciled/order 4/2.pdf"}) == verdict.committed("reconciled/order 4/2.pdf")
    assert doubt.ask(reconcile, None) is verdict.unknown


def test_a_missing_bucket_proves_nothing(doubt: Doubt, config: dict[str, Any]) -> None:
    """The response looks like that for a missing object."""
    doubt.clock.advance(2 * FINAL_SECONDS)

    assert doubt.ask(s3_object("s3://none/{key}", config=config, final_after_seconds=1)) is verdict.unknown


def test_a_wrong_key_proves_nothing(doubt: Doubt, config: dict[str, Any]) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    wrong = config | {"access_key_id": "nobody", "secret_access_key": "nothing"}

    assert doubt.ask(s3_object(URL, config=wrong, final_after_seconds=1)) is verdict.unknown


def test_a_server_that_is_down_or_silent_proves_nothing(doubt: Doubt, config: dict[str, Any]) -> None:
    doubt.clock.advance(2 * FINAL_SECONDS)
    with bind() as sock, scripted(Hold(), Hold(), Hold()) as silent:
        for endpoint in (url_of(sock), silent.url):
            reconcile = s3_object(
                URL, config=config | {"endpoint": endpoint}, final_after_seconds=1, timeout_seconds=0.3
            )
            assert doubt.ask(reconcile) is verdict.unknown


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("https://bucket/x", {}),
        ("s3://bucket", {}),
        ("s3://bucket/", {}),
        ("s3:///x", {}),
        ("s3://{key}/x", {}),
        ("s3://bucket/{name}", {}),
        (URL, {"final_after_seconds": -1}),
        (URL, {"found": 7}),
    ],
)
def test_a_wrong_option_is_refused_at_once(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        s3_object(url, **options)
