"""Encoding of Redis commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.claim import Begin, Move, Verb
from onceward.core.outcome import Outcome
from onceward.store.redis.resp import BucketNames, bucket_of, encode, encode_begin, encode_move

NAMES = BucketNames(
    *(f"onceward:{{7f}}:{word}".encode() for word in ("e:", "c:", "all", "open", "due", "version", "lapse"))
)
SCRIPT = b"5d41402abc4b2a76b9719d911017c592a1b2c3d4"
BUCKET = bucket_of(NAMES, SCRIPT)
BEGIN = Begin("scope", "key", "w", "f", "h", repeatable=True, lease=1, retain=2)

words = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["", "plain", "größer", "\r\n$3\r\n", "😀"]
)
numbers = st.integers(0, 2**62)
moments = st.just("") | numbers.map(str)


@pytest.mark.parametrize("data", [bytearray(b"hi"), memoryview(b"hi")], ids=["a bytearray", "a view"])
def test_every_bytes_like_object_is_sent_as_its_bytes(data: Any) -> None:
    assert encode("SET", "k", data) == encode("SET", "k", b"hi") == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nhi\r\n"


@given(words, words, words, words, st.booleans(), numbers, moments)
def test_a_begin_is_encoded_as_the_arguments_of_its_script(
    key: str, fingerprint: str, holder: str, endpoint: str, repeatable: bool, lease: int, now: str
) -> None:
    write = replace(
        BEGIN, key=key, fingerprint=fingerprint, holder=holder, endpoint=endpoint, repeatable=repeatable, lease=lease
    )
    member = f"{write.scope}\x00{key}"

    assert encode_begin(BUCKET, member, now, write) == encode(
        *(
            b"EVALSHA",
            SCRIPT,
            7,
            NAMES.entry + member.encode(),
            NAMES.chunks + member.encode(),
            *NAMES[2:],
            "begin",
            now,
        ),
        *(member, write.write_id, fingerprint, holder, int(repeatable), lease, write.retain, write.dead, write.user_id),
        endpoint,
        write.key_basis,
    )


@given(
    words,
    st.sampled_from(Verb),
    words,
    words,
    st.builds(
        Outcome,
        st.none() | st.integers(100, 599),
        st.none() | words,
        st.none() | st.binary(max_size=30),
        st.integers(0, 9),
    ),
    moments,
)
def test_a_move_is_encoded_as_the_arguments_of_its_script(
    key: str, verb: Verb, note: str, known: str, outcome: Outcome, now: str
) -> None:
    write = Move("scope", key, "w", verb, 7, lease=3, retain=4, outcome=outcome, note=note, refuse=-1)
    member = f"scope\x00{key}"
    named = {"code": outcome.code, "headers": outcome.headers, "chunks": outcome.chunks, "body": outcome.body}

    assert encode_move(BUCKET, member, now, write, known) == encode(
        *(
            b"EVALSHA",
            SCRIPT,
            4,
            NAMES.entry + member.encode(),
            NAMES.open,
            NAMES.due,
            NAMES.lapse,
            verb.value,
            now,
            member,
            "w",
            7,
            3,
        ),
        *(4, note, known, -1),
        *(word for name, value in named.items() if value is not None for word in (name, value)),
    )


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_begin(BUCKET, "scope\x00key", "", replace(BEGIN, holder="\ud800"))
