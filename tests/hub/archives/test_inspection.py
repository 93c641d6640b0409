"""Harmless archives are described; harmful ones are refused, with the limit that they exceed."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub.archives.sample_archives import (
    deflated,
    ended,
    entry,
    full_overlap,
    gzipped,
    local,
    one_entry,
    quoted_overlap,
    streamed_zip,
    tarred,
    zipped,
)

from onceward.errors import InvalidInput
from onceward.hub.archives import ArchiveLimits, ArchiveSummary, inspect

InspectBytes = Callable[..., ArchiveSummary | None]
FILES = {
    "read.me": b"hello",
    "a/b.txt": b"text " * 2000,
    "a/empty": b"",
    "ä/ü.bin": random.Random(7).randbytes(200_000),
}
TOTAL = sum(len(content) for content in FILES.values())
MIB = 1024 * 1024


@pytest.fixture
def inspect_bytes(tmp_path: Path) -> InspectBytes:
    def inspect_bytes(
        content: bytes, media_type: str = "application/octet-stream", **limits: int
    ) -> ArchiveSummary | None:
        path = tmp_path / "upload"
        path.write_bytes(content)
        return inspect(path, media_type, replace(ArchiveLimits(), **limits))

    return inspect_bytes


HONEST = {
    "zip": ("zip", zipped(FILES)),
    "zip stored": ("zip", zipped(FILES, zipfile.ZIP_STORED)),
    "zip bzip2": ("zip", zipped(FILES, zipfile.ZIP_BZIP2)),
    "zip streamed": ("zip", streamed_zip(FILES)),
    "zip behind a program": ("zip", b"PK\3\4#!/bin/sh\n" + zipped(FILES)),
    "tar pax": ("tar", tarred(FILES)),
    "tar gnu": ("tar", tarred(FILES, tarfile.GNU_FORMAT)),
    "tar ustar": ("tar", tarred(FILES, tarfile.USTAR_FORMAT)),
    "tar.gz": ("tar.gz", gzipped(tarred(FILES))),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_valid_archive_is_described(inspect_bytes: InspectBytes, name: str) -> None:
    form, content = HONEST[name]

    assert inspect_bytes(content) == ArchiveSummary(form, len(FILES), TOTAL)


def test_a_summary_leaves_zeros_out_of_meta(inspect_bytes: InspectBytes) -> None:
    seen = inspect_bytes(zipped({"one": b"1", "inner.zip": zipped({"two": b"22"})}))

    assert seen is not None
    meta = seen.as_meta()
    assert meta.pop("total_unpacked_bytes") == 1 + len(zipped({"two": b"22"}))
    assert meta == {"format": "zip", "entries": 2, "nested": 1, "nested_unpacked_bytes": 2}


def test_a_gzip_file_is_one_entry_with_any_number_of_members(inspect_bytes: InspectBytes) -> None:
    assert inspect_bytes(gzipped(b"x" * 1000)) == ArchiveSummary("gz", 1, 1000)
    assert inspect_bytes(gzipped(b"") + gzipped(b"x" * 1000) + gzipped(b"yz") + b"\0" * 700) == ArchiveSummary(
        "gz", 1, 1002
    )


def test_a_zip_without_entries_is_an_archive(inspect_bytes: InspectBytes) -> None:
    assert inspect_bytes(zipped({})) == ArchiveSummary("zip", 0, 0)


def test_a_file_that_is_not_an_archive_is_left_alone(inspect_bytes: InspectBytes) -> None:
    assert inspect_bytes(b"") is None
    assert inspect_bytes(b"plain text, and PK\3\4 in the middle", "text/plain") is None
    assert inspect_bytes(os.urandom(5000) + b"x") is None


def test_a_zip64_file_is_read(inspect_bytes: InspectBytes) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive, archive.open("large", "w", force_zip64=True) as large:
        large.write(b"12345")

    assert inspect_bytes(target.getvalue()) == ArchiveSummary("zip", 1, 5)


def refused(
    inspect_bytes: InspectBytes, content: bytes, limit: str, media_type: str = "application/zip", **limits: int
) -> None:
    with pytest.raises(InvalidInput) as raised:
        inspect_bytes(content, media_type, **limits)
    assert [name for name, _ in raised.value.fields] == [f"archive.{limit}"], raised.value


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 196_700, 3 * 65_536 + 258])
def test_the_last_bytes_are_counted_at_any_piece_boundary(inspect_bytes: InspectBytes, size: int) -> None:
    assert inspect_bytes(zipped({"z": bytes(size)})) == ArchiveSummary("zip", 1, size)
    assert inspect_bytes(gzipped(bytes(size))) == ArchiveSummary("gz", 1, size)


def test_links_and_devices_are_counted(inspect_bytes: InspectBytes) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, kind in [("f", tarfile.REGTYPE), ("s", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE),
                           ("c", tarfile.CHRTYPE), ("p", tarfile.FIFOTYPE), ("d", tarfile.DIRTYPE)]:  # fmt: skip
            described = tarfile.TarInfo(name)
            described.type = kind
            described.linkname = "f"
            archive.addfile(described)

    assert inspect_bytes(target.getvalue()) == ArchiveSummary("tar", 6, 0, links=2, devices=2)
    assert inspect_bytes(one_entry(b"../../etc", mode=0o120777)) == ArchiveSummary("zip", 1, 9, links=1)


def test_encrypted_and_unknown_entries_are_counted_by_their_declared_size(inspect_bytes: InspectBytes) -> None:
    assert inspect_bytes(one_entry(b"secret", flags=1)) == ArchiveSummary("zip", 1, 6, encrypted=1, unverified=1)
    assert inspect_bytes(one_entry(b"strange", method=93)) == ArchiveSummary("zip", 1, 7, unverified=1)


# Limits.


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
def test_too_many_entries_are_refused(inspect_bytes: InspectBytes, form: str) -> None:
    files = {f"{number}": b"" for number in range(11)}
    content = {"zip": zipped(files), "tar": tarred(files), "tar.gz": gzipped(tarred(files))}[form]

    refused(inspect_bytes, content, "max_entries", max_entries=10)
    assert inspect_bytes(content, max_entries=11) is not None


def test_entries_of_nested_archives_count_too(inspect_bytes: InspectBytes) -> None:
    inner = zipped({f"{number}": b"" for number in range(6)})

    refused(inspect_bytes, zipped({"1": inner, "2": inner}), "max_entries", max_entries=12)


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "gz"])
def test_too_many_bytes_are_refused(inspect_bytes: InspectBytes, form: str) -> None:
    files = {"a": random.Random(1).randbytes(600), "b": random.Random(2).randbytes(600)}
    content = {"zip": zipped(files), "tar": tarred(files), "tar.gz": gzipped(tarred(files)),
               "gz": gzipped(files["a"] + files["b"])}[form]  # fmt: skip

    refused(inspect_bytes, content, "max_total_unpacked_bytes", max_total_unpacked_bytes=1199)
    assert inspect_bytes(content, max_total_unpacked_bytes=20_000) is not None


@pytest.mark.parametrize("content", [zipped({"z": bytes(11 * MIB)}), gzipped(bytes(11 * MIB))], ids=["zip", "gz"])
def test_an_archive_that_expands_like_a_bomb_is_refused(inspect_bytes: InspectBytes, content: bytes) -> None:
    refused(inspect_bytes, content, "max_ratio")
    assert inspect_bytes(content, max_ratio=1100) is not None


def test_a_small_file_may_expand_at_any_ratio(inspect_bytes: InspectBytes) -> None:
    assert inspect_bytes(gzipped(bytes(9 * MIB))) == ArchiveSummary("gz", 1, 9 * MIB)


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_a_path_may_be_long_but_not_too_long(inspect_bytes: InspectBytes, form: str) -> None:
    make = zipped if form == "zip" else tarred

    assert inspect_bytes(make({"ü" * 1024: b""})) is not None
    refused(inspect_bytes, make({"ü" * 1025: b""}), "max_path_length")
    refused(inspect_bytes, make({"a" * 30_000: b""}), "max_path_length")


UNSAFE = ["/etc/passwd", "../up", "a/../../up", "a/..", "C:/x", "c:x", "a\\b", "..\\up", "\\\\host\\share"]


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
def test_a_path_that_leaves_its_folder_is_refused(inspect_bytes: InspectBytes, form: str, name: str) -> None:
    content = one_entry(b"", name=name.encode()) if form == "zip" else tarred({name: b""})

    refused(inspect_bytes, gzipped(content) if form == "tar.gz" else content, "safe_paths")


def test_a_second_name_must_be_safe_too(inspect_bytes: InspectBytes) -> None:
    name = b"../up"
    extra = struct.pack("<HHBL", 0x7075, 5 + len(name), 1, zlib.crc32(b"a")) + name

    refused(inspect_bytes, one_entry(b"", extra=extra), "safe_paths")


@pytest.mark.parametrize("name", ["a..b", "...", "./a", "a/./b", "a//b", "folder/"])
def test_an_odd_path_is_not_necessarily_unsafe(inspect_bytes: InspectBytes, name: str) -> None:
    assert inspect_bytes(zipped({name: b""})) is not None


# Bombs.


def test_a_bomb_with_quoted_headers_is_refused_for_its_overlap(inspect_bytes: InspectBytes) -> None:
    bomb = quoted_overlap(50, 100_000)
    start = bomb.index(b"0000") + 4

    # It is a real one: its first entry unpacks to what it declares.
    assert len(zlib.decompressobj(-15).decompress(bomb[start:])) > 100_000
    refused(inspect_bytes, bomb, "no_overlap")


def test_a_bomb_with_fully_overlapping_entries_is_refused(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, full_overlap(60, 100_000), "no_overlap")
    assert inspect_bytes(full_overlap(1, 100_000)) == ArchiveSummary("zip", 1, 100_000)


def test_an_entry_that_reaches_into_the_directory_is_refused(inspect_bytes: InspectBytes) -> None:
    packed = deflated(b"x" * 100)
    body = local(b"a", len(packed) + 10, b"x" * 100) + packed

    refused(inspect_bytes, ended(body, entry(b"a", len(packed) + 10, b"x" * 100, 0), 1), "no_overlap")


@pytest.mark.parametrize("layers", [1, 2, 3], ids=["in one", "in two", "in three"])
@pytest.mark.parametrize("wrap", [gzipped, lambda inner: zipped({"inner": inner})], ids=["gz", "zip"])
def test_a_bomb_inside_an_archive_is_found(
    inspect_bytes: InspectBytes, wrap: Callable[[bytes], bytes], layers: int
) -> None:
    bomb = gzipped(bytes(12 * MIB))
    for _ in range(layers):
        bomb = wrap(bomb)

    refused(inspect_bytes, bomb, "max_ratio")


def test_a_zip_full_of_zips_full_of_bombs_is_refused(inspect_bytes: InspectBytes) -> None:
    bomb = zipped({"0": bytes(3 * MIB)})
    for _ in range(2):
        bomb = zipped({str(number): bomb + bytes(0) for number in range(8)})

    refused(inspect_bytes, bomb, "max_ratio")


def test_endlessly_nested_archives_are_refused(inspect_bytes: InspectBytes) -> None:
    deep = b"core"
    for _ in range(6):
        deep = gzipped(deep)

    refused(inspect_bytes, deep, "max_depth")
    assert inspect_bytes(deep, max_depth=6) is not None


def test_a_wrong_declared_size_is_found_before_unpacking(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, one_entry(bytes(5 * MIB), size=10), "declared_sizes")
    refused(inspect_bytes, one_entry(b"short", size=1000), "readable")


def test_a_sparse_file_counts_with_its_holes(inspect_bytes: InspectBytes) -> None:
    described = tarfile.TarInfo("holes")
    described.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "holes",
                             "GNU.sparse.realsize": str(2 * 1024**4)}  # fmt: skip
    described.size = 512
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(described, io.BytesIO(b"0\n".ljust(512, b"\0")))

    refused(inspect_bytes, target.getvalue(), "max_total_unpacked_bytes")
    refused(inspect_bytes, gzipped(target.getvalue()), "max_total_unpacked_bytes")


def test_a_header_that_needs_too_much_memory_is_refused(inspect_bytes: InspectBytes) -> None:
    described = tarfile.TarInfo("long")
    described.type, described.size = tarfile.GNUTYPE_LONGNAME, 2 * MIB
    content = described.tobuf(tarfile.GNU_FORMAT) + b"n" * 2 * MIB + tarred({"n": b""})

    refused(inspect_bytes, content, "readable", "application/x-tar")


def test_a_global_header_with_a_path_is_refused(inspect_bytes: InspectBytes) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "../up"}):
        pass

    refused(inspect_bytes, target.getvalue(), "readable", "application/x-tar")


def test_an_archive_that_declares_too_much_is_refused_before_it_is_read(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, one_entry(b"x", size=2**31), "max_total_unpacked_bytes")


def test_a_gzip_file_of_empty_members_is_refused(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, gzipped(b"") * 100_001, "readable")


# Damage.


@pytest.mark.parametrize("name", [name for name in HONEST if "behind" not in name])
def test_a_truncated_archive_is_refused(inspect_bytes: InspectBytes, name: str) -> None:
    content = HONEST[name][1]
    # A tar may end anywhere after its last entry.
    for length in {10, 300, 600, len(content) // 2, 200_000}:
        refused(
            inspect_bytes, content[:length], "readable", "application/x-tar" if "tar" in name else "application/zip"
        )


@pytest.mark.parametrize("name", HONEST)
def test_a_damaged_archive_ends_in_a_summary_or_a_refusal(inspect_bytes: InspectBytes, name: str) -> None:
    chance, content = random.Random(name), HONEST[name][1]
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 3, 20])):
            damaged[chance.randrange(len(damaged)) if chance.random() < 0.5 else -chance.randrange(1, 500)] ^= 1 << chance.randrange(8)  # fmt: skip
        with suppress(InvalidInput):
            inspect_bytes(bytes(damaged))


def test_a_header_and_the_directory_must_agree(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, one_entry(b"x", name=b"safe", local_name=b"evil"), "readable")
    two = local(b"a", 1, b"x", method=0) + b"x"
    refused(inspect_bytes, ended(two, entry(b"a", 1, b"x", 0, method=0), 2), "readable")
    refused(inspect_bytes, zipped(FILES) + b"more", "readable")


def test_a_gzip_file_with_trailing_data_is_refused(inspect_bytes: InspectBytes) -> None:
    refused(inspect_bytes, gzipped(b"x") + b"garbage", "readable", "application/gzip")
    refused(inspect_bytes, gzip.compress(b"x")[:-4], "readable", "application/gzip")


def test_a_nested_archive_that_cannot_be_read_is_only_counted(inspect_bytes: InspectBytes) -> None:
    cut, broken = gzipped(os.urandom(5000))[:-100], zipped({"a": b"b"})[:-30]
    content = tarred({"cut.gz": cut, "broken.zip": broken, "fine.gz": gzipped(b"123")})

    assert inspect_bytes(content) == ArchiveSummary(
        "tar", 3, len(cut) + len(broken) + len(gzipped(b"123")),
        nested=3, nested_unread=2, nested_unpacked_bytes=3,
    )  # fmt: skip


def test_damage_outside_a_nested_archive_is_not_taken_for_damage_inside(inspect_bytes: InspectBytes) -> None:
    """A truncated gzip file inside a complete one is accepted; a truncated outer file is not."""
    inner = gzipped(random.Random(3).randbytes(300_000))
    outer = gzipped(inner)

    refused(inspect_bytes, outer[: len(outer) // 2], "readable", "application/gzip")


def test_a_nested_zip_too_large_for_memory_is_only_counted(inspect_bytes: InspectBytes) -> None:
    inner = zipped({"a": random.Random(5).randbytes(17 * MIB)}, zipfile.ZIP_STORED)
    seen = inspect_bytes(zipped({"inner.zip": inner}, zipfile.ZIP_STORED))

    assert seen == ArchiveSummary("zip", 1, len(inner), nested=1, nested_unread=1)
