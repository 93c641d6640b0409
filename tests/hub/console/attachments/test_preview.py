"""Previews: which types have one, and how the beginning of a text is decoded."""

from __future__ import annotations

import pytest

from onceward.hub.console.attachments.preview import IMAGE_BYTES_MAX, excerpt, preview_kind
from onceward.hub.tasks import TaskAttachment


def attachment(media_type: str | None, size_bytes: int = 10, **meta: str) -> TaskAttachment:
    return TaskAttachment(
        id="at-1",
        task_id="t1",
        kind="other",
        source_type="managed_blob",
        title=None,
        filename="a",
        media_type=media_type,
        media_type_source="sniffed",
        blob_id="bl-1",
        external_url=None,
        repo_path=None,
        created_at="",
        updated_at="",
        expires_at=None,
        meta=dict(meta),
        size_bytes=size_bytes,
    )


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [("image/png", "image"), ("image/webp", "image"), ("text/plain", "text"), ("text/markdown", "text"),
     ("application/json", "text"), ("text/csv", "text"), ("image/svg+xml", ""), ("text/html", ""),
     ("application/pdf", ""), ("video/mp4", ""), ("text/javascript", ""), (None, "")],
)  # fmt: skip
def test_only_images_and_texts_of_the_safe_list_have_a_preview(media_type: str | None, kind: str) -> None:
    assert preview_kind(attachment(media_type)) == kind


def test_the_detected_type_counts_and_not_only_the_declared_one() -> None:
    assert preview_kind(attachment("text/plain", sniffed_media_type="text/html")) == ""
    assert preview_kind(attachment("image/png", sniffed_media_type="image/svg+xml")) == ""


def test_a_large_image_has_no_preview() -> None:
    assert preview_kind(attachment("image/png", IMAGE_BYTES_MAX)) == "image"
    assert preview_kind(attachment("image/png", IMAGE_BYTES_MAX + 1)) == ""


def test_a_text_is_decoded_without_the_character_that_its_end_cuts_in_two() -> None:
    assert excerpt("Grün".encode()[:3], is_cut=True) == "Gr"
    assert excerpt("Grün".encode()[:3], is_cut=False) == "Gr\ufffd"
    assert excerpt("\ufeffGrün".encode("utf-16-le"), is_cut=False) == "Grün"
    assert excerpt(b"\xef\xbb\xbfa\r\nb\tc", is_cut=False) == "a\nb\tc"


def test_a_text_has_no_control_characters_that_change_how_it_is_read() -> None:
    assert excerpt("a\x00\x1b[2J\u202eb".encode(), is_cut=False) == "a\ufffd\ufffd[2J\ufffdb"
