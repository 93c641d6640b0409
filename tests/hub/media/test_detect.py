"""Detection: the bytes that are read, the types that result, and inputs that try to misuse it."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.hub.media import corpus, corpus_binaries, corpus_containers

from onceward.hub.media import Found, Sniffed, is_inline_safe, libmagic, sniff
from onceward.hub.media.detect import of_sample
from onceward.hub.media.sample import take

MIB = 1024 * 1024


def sniffed(data: bytes, filename: str | None = None) -> Sniffed:
    return of_sample(take(io.BytesIO(data)), filename)


class Counting(io.BytesIO):
    """A file that counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


@pytest.mark.parametrize(
    "data",
    [
        corpus_binaries.noise(1000) + bytes(8 * MIB),
        b"words and words\n" * (MIB // 2),
        b"[" + b"1," * (4 * MIB) + b"1]",
        corpus_containers.zipped({f"{number}.txt": b"x" for number in range(20_000)}, padding=4 * MIB),
        corpus_containers.ole("Contents") + bytes(8 * MIB),
    ],
    ids=["data", "text", "json", "zip", "ole"],
)
def test_only_a_small_part_of_a_large_file_is_read(data: bytes) -> None:
    file = Counting(data)

    of_sample(take(file))

    assert file.taken < 512 * 1024


def test_a_file_of_ten_gigabytes_is_sniffed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(corpus_binaries.boxes(b"isom", b"mp41"))
        file.truncate(10 * 1024 * MIB)
    started = time.process_time()

    found = sniff(path)

    assert found.media_type == "video/mp4"
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"GIF89a=1;alert(document.domain)//" + b" " * 50, "image/gif"),
        (b"GIF89a/*" + corpus_binaries.noise(40) + b"*/=1;alert(1)//;", "image/gif"),
        (b"%PDF-1.4\n" + corpus_containers.zipped({"a.html": b"<script>"}), "application/pdf"),
        (corpus_binaries.jpeg(b"<!doctype html><script>alert(1)</script>"), "image/jpeg"),
        (corpus_binaries.png() + b"<html><script>alert(1)</script></html>", "image/png"),
        (
            corpus_containers.zipped({"[Content_Types].xml": b"<html>"}) + b"<script>alert(1)</script>",
            "application/zip",
        ),
        (b"<!doctype html><script>alert(1)</script>\x00", "text/html"),
        (b"\xef\xbb\xbf  <svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "image/svg+xml"),
        ("<html><script>alert(1)</script>".encode("utf-16"), "text/html"),
        ("<html><script>alert(1)</script>".encode("utf-16-le"), "text/html"),
        (b"<?xml version='1.0'?><?xml-stylesheet href='a.xsl'?><a xmlns='b'/>", "application/xml"),
        (b"#!/bin/sh\nexit 0\n" + corpus_binaries.noise(5000), "text/x-shellscript"),
    ],
)
def test_a_polyglot_file_has_the_type_of_its_beginning_and_is_never_shown_inline(data: bytes, media_type: str) -> None:
    found = sniffed(data)

    assert found.content_type == media_type
    if is_inline_safe(found.content_type):
        # It is served only as a picture, whatever else it contains.
        assert media_type.startswith("image/")


@pytest.mark.parametrize(
    "text", ["ID3 is a tag.\n", "BLENDER notes\n", "PAR1 and PAR2\n", "BM 42\n", "MZ\n", "P1\n", "wOFF!"]
)
def test_a_text_that_begins_with_a_signature_is_text(text: str) -> None:
    assert sniffed(text.encode()).media_type == "text/plain"


@pytest.mark.parametrize(
    "text",
    ["42", '"words"', "null", "[1, 2", '{"a": 1} trailing', "{'a': 1}", '{"a": NaN}', "[TODO] write", "[" * 100_000],
)
def test_an_incomplete_json_object_or_array_is_not_json(text: str) -> None:
    assert sniffed(text.encode()).media_type != "application/json"


def test_a_large_json_file_needs_a_valid_beginning_and_the_right_end() -> None:
    rows = b",".join([b'{"a": [1.5e3, "\\u00e9", true]}'] * 60_000)

    assert sniffed(b"[" + rows + b"]\n").media_type == "application/json"
    assert sniffed(b"[" + rows + b"}\n").media_type == "text/plain"
    assert sniffed(b"[{1: 2}," + rows + b"]\n").media_type == "text/plain"
    assert sniffed(b'{"a" "b",' + rows + b"}").media_type == "text/plain"


def test_a_zip_file_with_data_before_its_directory_is_still_read() -> None:
    names = {"media/first.bin": corpus_binaries.noise(100_000)} | corpus_containers.office("xl", "workbook.xml")
    data = corpus_containers.zipped(names)
    split = data.index(b"PK\x01\x02")

    assert (
        sniffed(data[:split] + corpus_binaries.noise(500) + data[split:]).media_type
        == f"{corpus_containers.OOXML}.spreadsheetml.sheet"
    )


@pytest.mark.parametrize("case", corpus.cases()[::11], ids=lambda case: f"{case.name} {case.filename or ''}".strip())
def test_a_file_truncated_anywhere_is_sniffed_without_an_error(case: corpus.Case) -> None:
    for length in {*range(0, min(len(case.data), 600), 13), len(case.data) - 1, len(case.data) // 2}:
        sniffed(case.data[: max(0, length)])


# Inputs for which a careless pattern takes minutes or longer.
@pytest.mark.parametrize(
    "part", ["\n", " ", "/*a*/", "//\n", "%\n", "<!--a-->", "<!DOCTYPE a [", "<a b='", "[", "[a", "**a", '{"a":', '"', "a,", "`", "| -", "a: b\n"]
)  # fmt: skip
def test_no_text_takes_long_to_sniff(part: str) -> None:
    for start in ("", "<?xml version='1.0'?><a ", "a\n", "\0"):
        data = (start + part * 65_536).encode()[:65_536]
        started = time.process_time()
        sniffed(data)

        # Some milliseconds; the bound is for a slow machine.
        assert time.process_time() - started < 1


def test_concurrent_threads_get_the_same_types_as_one() -> None:
    cases = corpus.cases()
    alone = [sniffed(case.data, case.filename) for case in cases]

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda case: sniffed(case.data, case.filename), cases))

    assert together == alone
    assert {Found.LIBMAGIC, Found.SIGNATURE, Found.TEXT, Found.NAME, Found.EMPTY, Found.NOTHING} == {
        found.found for found in alone
    }


def test_loading_libmagic_leaves_nothing_for_a_child_process_to_inherit() -> None:
    script = (
        "import ctypes, os\n"
        "before = (dict(os.environ), ctypes.CDLL.__init__)\n"
        "from onceward.hub.media import libmagic\n"
        "assert libmagic.is_there()\n"
        "assert libmagic.raw_type(bytes.fromhex('5a57530d001000005d0000200000')) == 'application/x-shockwave-flash'\n"
        "assert (dict(os.environ), ctypes.CDLL.__init__) == before\n"
    )
    for already_set in ({}, {"LD_LIBRARY_PATH": "nowhere", "MAGIC": "nowhere"}):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=os.environ | already_set)

    assert "MAGIC" not in os.environ
    assert ctypes.CDLL.__init__.__name__ == "__init__"


def test_without_libmagic_the_built_in_table_is_used() -> None:
    script = (
        "import sys, io\n"
        "sys.modules['magic'] = None\n"
        "from onceward.hub.media import libmagic\n"
        "from onceward.hub.media.sample import take\n"
        "from onceward.hub.media.detect import of_sample\n"
        "assert not libmagic.is_there()\n"
        "assert of_sample(take(io.BytesIO(b'fLaC' + bytes(20)))).media_type == 'audio/flac'\n"
        "assert of_sample(take(io.BytesIO(bytes.fromhex('5a57530d001000005d0000200000')))).media_type == 'application/octet-stream'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_system_libmagic_that_was_loaded_before_does_no_harm() -> None:
    """It cannot read the table of the wheel; it has its own, or says nothing."""
    script = (
        "import sys, io\n"
        "try:\n    import magic\nexcept ImportError:\n    sys.exit()\n"
        "from onceward.hub.media import libmagic\n"
        "assert libmagic.raw_type(bytes.fromhex('5a57530d001000005d0000200000')) in {'', 'application/x-shockwave-flash',\n"
        "                                               'application/vnd.adobe.flash.movie'}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)

    assert done.stderr == b""


def test_libmagic_is_not_used_for_whitespace() -> None:
    known = corpus_binaries.HEADERS["application/x-shockwave-flash"]

    assert libmagic.detect(known + b"\0" * 2000) == "application/x-shockwave-flash"
    assert libmagic.detect(known + b"\n" * 2000) is None
