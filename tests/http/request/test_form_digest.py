"""The fingerprint of a form: every change of a part counts, the boundary and the way it arrived do not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from python_multipart.multipart import MultipartParser, parse_options_header

from onceward.http.request.form_digest import parts_digest
from onceward.http.request.headers import digest_of


@dataclass(frozen=True)
class Part:
    name: str
    content: bytes
    file_name: str | None = None
    kind: str | None = None


UPLOAD = (
    Part("title", b"Holiday"),
    Part("photo", bytes(range(256)), "beach.jpg", "image/jpeg"),
    Part("note", b"", "", "text/plain"),
)


def form(parts: tuple[Part, ...], boundary: str) -> bytes:
    lines = []
    for part in parts:
        disposition = f'form-data; name="{part.name}"'
        if part.file_name is not None:
            disposition += f'; filename="{part.file_name}"'
        head = f"--{boundary}\r\nContent-Disposition: {disposition}\r\n"
        if part.kind is not None:
            head += f"Content-Type: {part.kind}\r\n"
        lines.append(head.encode() + b"\r\n" + part.content + b"\r\n")
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


def taken(boundary: str, *pieces: bytes) -> bytes | None:
    digest = parts_digest(f"multipart/form-data; boundary={boundary}")
    assert digest is not None
    for piece in pieces:
        digest.feed(piece)
    return digest.finish()


def of(parts: tuple[Part, ...], boundary: str = "-----one") -> bytes | None:
    return taken(boundary, form(parts, boundary))


names = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"), exclude_characters='"\\%'), max_size=8
)
# The boundary's bytes may occur inside a part if they are not the whole delimiter.
contents = st.binary(max_size=40) | st.lists(
    st.sampled_from([b"\r", b"\n", b"--", b"-", b"one", b"on", b"\r\n--", b"x", b"\r\n-----on"]), max_size=8
).map(b"".join).filter(lambda content: b"-----one" not in b"\r\n" + content)  # fmt: skip
kinds = st.none() | st.sampled_from(["text/plain", "image/png", "text/plain; charset=utf-8"])
forms = st.lists(st.builds(Part, names, contents, st.none() | names, kinds), max_size=4).map(tuple)


@given(forms, st.text("abcXYZ019", min_size=3, max_size=20))
def test_the_same_parts_with_another_boundary_are_the_same_form(parts: tuple[Part, ...], drawn: str) -> None:
    boundary = f"{drawn}-not-in-any-part"

    assert of(parts) is not None
    assert of(parts, boundary) == of(parts)


@given(forms, forms)
@example((Part("a", b"1"), Part("b", b"2")), (Part("b", b"2"), Part("a", b"1")))
@example((Part("a", b"1"),), (Part("a", b"1"), Part("a", b"1")))
@example((Part("a", b"", ""),), (Part("a", b""),))
@example((Part("ab", b"", "c"),), (Part("a", b"", "bc"),))
@example((Part("a", b"", "b"),), (Part("a", b"", None, "b"),))
@example((), (Part("", b""),))
def test_different_parts_make_a_different_form(one: tuple[Part, ...], other: tuple[Part, ...]) -> None:
    assert (of(one) == of(other)) == (stripped(one) == stripped(other))


def stripped(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """A missing type is the same as an empty one."""
    return tuple(replace(part, kind=part.kind or "") for part in parts)


@pytest.mark.parametrize(
    "changed",
    [
        replace(UPLOAD[1], name="picture"),
        replace(UPLOAD[1], file_name="forest.jpg"),
        replace(UPLOAD[1], file_name=None),
        replace(UPLOAD[1], file_name=""),
        replace(UPLOAD[1], kind="image/png"),
        replace(UPLOAD[1], kind=None),
        replace(UPLOAD[1], content=UPLOAD[1].content + b"\x00"),
        replace(UPLOAD[1], content=UPLOAD[1].content[:-1]),
        replace(UPLOAD[1], content=b""),
    ],
    ids=str,
)
def test_each_change_of_a_part_makes_a_different_form(changed: Part) -> None:
    assert of((UPLOAD[0], changed, UPLOAD[2])) != of(UPLOAD)


def test_the_order_and_number_of_parts_count() -> None:
    whole = {of(UPLOAD), of(UPLOAD[::-1]), of(UPLOAD[:2]), of(UPLOAD[1:]), of((*UPLOAD, UPLOAD[0])), of(())}

    assert None not in whole
    assert len(whole) == 6


def test_an_extended_file_name_counts_too() -> None:
    """Older HTTP clients send a name outside of ASCII as `filename*` alone."""

    def upload(name: str) -> bytes | None:
        head = f"--b\r\nContent-Disposition: form-data; name=\"f\"; filename*=utf-8''{name}\r\n\r\nx\r\n--b--\r\n"
        return taken("b", head.encode())

    assert upload("%C3%A4.txt") != upload("%C3%B6.txt")
    assert upload("%C3%A4.txt") == upload("%C3%A4.txt")


# However it arrives.


def test_a_form_split_in_two_anywhere_is_the_same_form() -> None:
    body, whole = form(UPLOAD, "-----one"), of(UPLOAD)

    for place in range(len(body) + 1):
        assert taken("-----one", body[:place], body[place:]) == whole, place


def test_a_form_that_arrives_byte_by_byte_is_the_same_form() -> None:
    body = form(UPLOAD, "-----one")

    assert taken("-----one", *(body[place : place + 1] for place in range(len(body)))) == of(UPLOAD)


@given(forms, st.lists(st.integers(0, 400), max_size=6))
@example(UPLOAD, [0])
@example(UPLOAD, [50, 50])
def test_a_form_in_pieces_of_any_size_is_the_same_form(parts: tuple[Part, ...], places: list[int]) -> None:
    body = form(parts, "-----one")
    cuts = sorted(min(place, len(body)) for place in places)
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    assert taken("-----one", *pieces, b"") == of(parts)


# Two other parsers agree on what the parts are.


def digest_from(parts: list[tuple[str, str | None, str, bytes]]) -> bytes:
    """The digest as documented in the module; the parts come from another parser."""
    each = [
        digest_of(
            b"field" if file_name is None else b"file",
            name.encode(), (file_name or "").encode(), kind.encode(), hashlib.sha256(content).digest(),
        ).encode()
        for name, file_name, kind, content in parts
    ]  # fmt: skip
    return digest_of(*each).encode()


@given(forms)
def test_the_parts_are_those_that_python_multipart_finds(parts: tuple[Part, ...]) -> None:
    found: list[tuple[str, str | None, str, bytes]] = []
    state: dict[str, bytes] = {}
    heads: dict[bytes, bytes] = {}

    def gather(name: str) -> object:
        def take(data: bytes, start: int, end: int) -> None:
            state[name] = state.get(name, b"") + data[start:end]

        return take

    def header_end() -> None:
        heads[state.pop("field", b"").lower()] = state.pop("value", b"")

    def part_end() -> None:
        _, options = parse_options_header(heads[b"content-disposition"])
        file_name = options.get(b"filename")
        kind = heads.get(b"content-type", b"").decode()
        name = options[b"name"].decode()
        found.append((name, None if file_name is None else file_name.decode(), kind, state.pop("data", b"")))
        heads.clear()

    callbacks = {
        "on_header_field": gather("field"), "on_header_value": gather("value"), "on_part_data": gather("data"),
        "on_header_end": header_end, "on_part_end": part_end,
    }  # fmt: skip
    parser = MultipartParser("-----one", callbacks)  # type: ignore[arg-type]
    parser.write(form(parts, "-----one"))
    parser.finalize()

    assert of(parts) == digest_from(found)


def test_the_parts_are_those_that_the_mail_parser_finds() -> None:
    head = b"Content-Type: multipart/form-data; boundary=-----one\r\n\r\n"
    message = BytesParser(policy=HTTP).parsebytes(head + form(UPLOAD, "-----one"))

    found = []
    for part in message.iter_parts():
        assert isinstance(part, Message)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        options = dict(part.get_params(header="content-disposition") or [])
        kind = str(part["content-type"]) if "content-type" in part else ""
        found.append((options["name"], options.get("filename"), kind, content))

    assert of(UPLOAD) == digest_from(found)


# An unreadable form is compared byte by byte.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"hello",
        b"--b\r\n",
        b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx",
        b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--b",
        b"--other\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--other--\r\n",
        b"--b\nContent-Disposition: form-data; name=a\n\nx\n--b--\n",
        b"--b\r\nno header\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\nContent-Disposition: form-data; name=\xff\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"X-A: 1\r\n" * 70 + b"\r\nx\r\n--b--\r\n",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_broken_form_has_no_digest_of_its_parts(body: bytes) -> None:
    assert taken("b", body) is None
    assert taken("b", body[:3], body[3:], b"more") is None


@given(st.binary(max_size=60).map(lambda rest: b"--b\r\n" + rest) | st.binary(max_size=60))
def test_no_body_makes_the_digest_fail(body: bytes) -> None:
    assert taken("b", body) is None or b"--b" in body


@pytest.mark.parametrize(
    "content_type",
    [
        "", "application/json", "multipart/mixed; boundary=b", "multipart/form-data", "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""', 'multipart/form-data; boundary="a\nb"', "multipart/form-data; boundary=\xe9",
    ],
)  # fmt: skip
def test_a_content_type_without_a_boundary_is_not_a_form(content_type: str) -> None:
    assert parts_digest(content_type) is None


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=b",
        'Multipart/Form-Data; charset=utf-8; Boundary="b"',
        " multipart/form-data;boundary=b",
    ],
)
def test_a_form_is_recognised_in_any_spelling_of_its_type(content_type: str) -> None:
    assert parts_digest(content_type) is not None


@given(st.text(st.characters(max_codepoint=0xFF), max_size=40))
def test_no_content_type_raises(text: str) -> None:
    parts_digest(text)
    parts_digest(f"multipart/form-data; {text}")
    parts_digest(f"multipart/form-data; boundary={text}")


def test_a_form_with_too_many_parts_is_not_parsed() -> None:
    """Such a form is not parsed, so that it cannot block the loop; its raw bytes are hashed."""
    assert of(UPLOAD[:1] * 2_000) is not None
    assert of(UPLOAD[:1] * 2_001) is None


def test_a_malformed_form_has_one_fingerprint_however_it_arrives() -> None:
    """With text before the first boundary, the parser's result depends on how the bytes are divided."""
    body = b'"\n"\n"\n"\n"\n"\n"\n"\n' + form(UPLOAD, "b1")
    found = set()
    for size in (1, 7, 100, len(body)):
        digest = parts_digest("multipart/form-data; boundary=b1")
        assert digest is not None
        for start in range(0, len(body), size):
            digest.feed(body[start : start + size])
        found.add(digest.finish())

    assert len(found) == 1
