"""Headers in practice: encoded words, parameters, addresses, and bytes without a charset."""

from __future__ import annotations

import pytest

from onceward.hub.ingest.email.charset import codec_of, decoded, storable
from onceward.hub.ingest.email.encodings import words_decoded
from onceward.hub.ingest.email.headers import (
    FIELDS_MAX,
    LIST_LENGTH_MAX,
    PARAMETERS_MAX,
    author_of,
    first,
    identifiers,
    mailboxes,
    parameter,
    split_head,
    with_parameters,
)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("plain", "plain"),
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe_an_alle?=", "Grüße an alle"),
        ("=?UTF-8?B?R3LDvMOfZQ==?=", "Grüße"),
        ("=?iso-8859-1?Q?Gr=FC=DFe?= you", "Grüße you"),
        ("=?iso-8859-1*de?Q?Gr=FC=DFe?=", "Grüße"),
        ("=?utf-8?q?a?= =?utf-8?q?b?=\t=?utf-8?q?c?= d", "abc d"),
        ("=?utf-8?q?a?= =?iso-8859-1?q?=FC?=", "aü"),
        ("=?utf-8?q?a?= and =?utf-8?q?b?=", "a and b"),
        ("=?utf-8?q?Gr=C3?= =?utf-8?q?=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?b?R3LD?= =?utf-8?b?vMOfZQ?=", "Grüße"),
        ("x=?utf-8?q?y?=z", "xyz"),
        ('"=?utf-8?q?Ann=2C_B?=" <a@b>', '"Ann, B" <a@b>'),
        ("=?utf-8?q?two words?=", "two words"),
        ("=?utf-8?q??=", ""),
        ("=?x-nobody?q?Gr=C3=BC?=", "Grü"),
        ("=??q?Gr=C3=BC?=", "Grü"),
        ("=?utf-8?q?=ff?=", "\ufffd"),
        ("=?utf-8?b?R?=", ""),
        ("=?utf-8?b?=3D!!?=", "\ufffd"),
        ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
        ("=?utf-8?q?a", "=?utf-8?q?a"),
        ("=?utf-8?q?a=00b?=", "ab"),
        ("=?utf-7?q?+2AA-?=", "\ufffd"),
        ("=?gb2312?B?xOO6ww==?=", "你好"),
        ("=?iso-2022-jp?B?GyRCJDMkcxsoQg==?=", "こん"),
        ("=?koi8-r?B?8NLJ18XU?=", "Привет"),
        ("=?koi8-r*ru?B?8NLJ18XU?=", "Привет"),
    ],
    ids=range(27),
)
def test_encoded_words_are_decoded(sent: str, text: str) -> None:
    assert words_decoded(sent) == text


@pytest.mark.parametrize(
    ("data", "label", "text"),
    [
        (b"Gr\xfc\xdfe", "iso-8859-1", "Grüße"),
        (b"\x80 5", "ISO_8859-1", "€ 5"),
        (b"\x80 5", "us-ascii", "€ 5"),
        (b"Gr\xc3\xbc", "us-ascii", "Grü"),
        (b"Gr\xc3\xbc", None, "Grü"),
        (b"Gr\xfc", None, "Grü"),
        (b"Gr\xfc", "utf-8", "Gr\ufffd"),
        (b"Gr\xfc", "no-such-charset", "Grü"),
        (b"Gr\xfc", "x" * 10_000, "Grü"),
        (b"Gr\xfc", "\0", "Grü"),
        (b"\x81", None, "\ufffd"),
        (b"\xd0\x81", "iso-8859-1", "Ё"),
        (b"G\0r\0\xfc\0", "utf-16le", "Grü"),
        (b"\xff\xfeG\0", "UTF-16", "G"),
        (b"odd", "utf-16-be", "odd"),
        (b"\xc4\xe3", "GB2312", "你"),
        (b"\x82\xa0", "Shift_JIS", "あ"),
        (b"\xb0\xa1", "ks_c_5601-1987", "가"),
        (b"a\0b", "utf-8", "ab"),
        # Python codecs that are not charsets, one of which takes quadratic time.
        (b"abc-", "punycode", "abc-"),
        (b"616263", "hex", "616263"),
        (b"abc", "rot13", "abc"),
        (b"\\u0041", "unicode_escape", "\\u0041"),
        (b"abc", "undefined", "abc"),
    ],
    ids=range(24),
)
def test_bytes_are_decoded_by_their_charset_or_by_best_effort(data: bytes, label: str | None, text: str) -> None:
    assert decoded(data, label) == text


@pytest.mark.parametrize(
    "label", ["utf8", "UTF-8", "utf_8", "cp1251", "windows-1251", "x-sjis", "EUC-KR", "Big5-HKSCS"]
)
def test_charsets_are_recognised_by_their_letters_and_digits(label: str) -> None:
    codec = codec_of(label)

    assert codec is not None
    assert b"A".decode(codec) == "A"


def test_storable_text_has_no_nul_and_no_lone_surrogates() -> None:
    assert storable("a\0b\ud800c\udc80") == "ab\ufffdc\ufffd"
    assert storable("Grüße 🎉") == "Grüße 🎉"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        ('text/plain; charset="utf-8"', "charset", "utf-8"),
        ("text/plain;charset = utf-8 ; x", "charset", "utf-8"),
        ('a/b; name="x;y \\"z\\".txt"', "name", 'x;y "z".txt'),
        ('a/b; name="open', "name", "open"),
        ('a/b; name="open\\', "name", "open"),
        ("a/b; name=two words.txt; x=y", "name", "two words.txt"),
        ("a/b; NAME=x; name=y", "name", "x"),
        ("a/b; name==?utf-8?q?=C3=BC?=", "name", "ü"),
        ("a/b; name*=iso-8859-1'de'%FC.txt; name=wrong", "name", "ü.txt"),
        ("a/b; name*=%FC.txt", "name", "ü.txt"),
        ("a/b; name*=no-such''%FC", "name", "ü"),
        ("a/b; name*0*=utf-8''%C3; name*1*=%BC; name*2=%20", "name", "ü%20"),
        ("a/b; name*1=b; name*0=a; name*3=d", "name", "ab"),
        ("a/b; name*=''", "name", ""),
        ("a/b; other=x", "name", None),
        ("a/b", "name", None),
        (";;;=;a=", "a", ""),
    ],
    ids=range(17),
)
def test_header_parameters_are_decoded(value: str, name: str, text: str | None) -> None:
    assert parameter(with_parameters(value)[1], name) == text


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("", []),
        ("a@b", ["a@b"]),
        ("Ann <a@b>, c@d", ["Ann <a@b>", "c@d"]),
        ('"B, Ann" <a@b>,c@d (x, y)', ['"B, Ann" <a@b>', "c@d (x, y)"]),
        ('"B \\", Ann" <a@b>', ['"B \\", Ann" <a@b>']),
        ("Team: a@b, c@d;, e@f", ["a@b", "c@d", "e@f"]),
        ("undisclosed-recipients:;", []),
        ("a@b; c@d", ["a@b", "c@d"]),
        (", ,", []),
        ('"never closed, a@b', ['"never closed, a@b']),
        ("<a@b", ["<a@b"]),
    ],
    ids=range(11),
)
def test_address_lists_are_split(value: str, found: list[str]) -> None:
    assert mailboxes(value) == found


@pytest.mark.parametrize(
    ("mailbox", "author"),
    [
        ("Ann <a@b>", "Ann"),
        ('"Ann \\"B\\" C" <a@b>', 'Ann "B" C'),
        ("=?utf-8?q?M=C3=BCller?= <a@b>", "Müller"),
        ('"=?utf-8?q?M=C3=BCller?=" <a@b>', "Müller"),
        ("<a@b>", "a@b"),
        ('"" <a@b>', "a@b"),
        ("a@b (Ann)", "Ann"),
        ("a@b", "a@b"),
        ("", ""),
    ],
    ids=range(9),
)
def test_an_author_is_a_name_or_else_an_address(mailbox: str, author: str) -> None:
    assert author_of(mailbox) == author


def test_the_end_of_a_very_long_list_is_left_out() -> None:
    assert len(mailboxes("a," * LIST_LENGTH_MAX)) == LIST_LENGTH_MAX // 2
    assert len(identifiers("<a>" * LIST_LENGTH_MAX)) == LIST_LENGTH_MAX // 3
    assert len(with_parameters("a/b" + "".join(f";{number}=x" for number in range(1000)))[1]) == PARAMETERS_MAX


def test_ids_are_in_brackets_or_separated_by_spaces() -> None:
    assert identifiers("your mail <a@b> (x) <c@d>") == ["<a@b>", "<c@d>"]
    assert identifiers("a@b c@d") == ["<a@b>", "<c@d>"]
    assert identifiers("") == identifiers(None) == []


@pytest.mark.parametrize(
    ("raw", "subject"),
    [
        ("Subject: Grüße".encode(), "Grüße"),
        ("Subject: Grüße".encode("cp1252"), "Grüße"),
        ("Content-Type: text/plain; charset=koi8-r\nSubject: Привет".encode("koi8-r"), "Привет"),
        (b"Subject: a\0b", "ab"),
        (b"Subject: a\n b\n\tc", "a b\tc"),
        (b"Subject:\n a", "a"),
        (b"Subject: a\r b", "a b"),
        (b"subject:a", "a"),
        (b"Subject:   ", None),
        (b"X: y", None),
    ],
    ids=range(10),
)
def test_a_field_is_one_line_of_text(raw: bytes, subject: str | None) -> None:
    fields, body = split_head(raw + b"\n\nbody")

    assert first(fields, "subject") == subject
    assert body == b"body"


def test_the_last_of_too_many_fields_are_left_out() -> None:
    fields, body = split_head(b"a: b\n" * FIELDS_MAX + b"Subject: x\n\nbody")

    assert len(fields["a"]) == FIELDS_MAX
    assert (first(fields, "subject"), body) == (None, b"body")
