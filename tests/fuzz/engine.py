"""A small fuzzer: it mutates seeds, and checks that a parser returns a value or raises its documented error.

An input fails if the parser raises anything else, breaks a property that the target asserts, takes too long, or needs
too much memory. An input with a result that no earlier input had becomes a seed itself.
"""

from __future__ import annotations

import random
import re
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

# CPU time of one input. Inputs have at most `INPUT_BYTES_MAX` bytes, so this is hundreds of times what one needs.
SECONDS_MAX = 0.5
# Then the parser is interrupted: it may never return.
HANG_SECONDS = 5.0
INPUT_BYTES_MAX = 32 * 1024
# Peak memory of one input, measured for one of `MEASURE_EVERY` inputs, because measuring is slow.
MEMORY_BYTES_MAX = 16 * 1024 * 1024
MEASURE_EVERY = 64
_POOL_MAX = 256

# Texts and bytes on which parsers fail: limits of numbers, encodings, delimiters, nesting.
WORDS: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", "\u2028".encode(),
    "\u202e".encode(), "\u0660".encode(), "\u00b2".encode(), "\u0130".encode(), "e\u0301".encode(), "\U0001f600".encode(),
    b"\r\n", b"\n", b"\r", b"\t", b"\x0b", b"\x85", b"\xa0", b" ", b'"', b"'", b"\\", b"/", b"//", b"..", b"%", b"%00",
    b"%2f", b"%c3%28", b"%zz", b":", b";", b",", b"=", b"-", b"+", b"*", b"@", b"[", b"]", b"{", b"}", b"[[", b"]]",
    b"0", b"-1", b"00", b"1e309", b"1e-400", b"2147483648", b"9223372036854775807", b"18446744073709551616",
    b"9" * 400, b"1" * 5000, b"NaN", b"-Infinity", b"null", b"true", b"\\ud800", b"\\u0000", b"[" * 2000, b'{"a":' * 1100,
    b"0001-01-01", b"9999-12-31T23:59:59.999999Z", b"=?utf-8?q?=ff?=", b"=?x?b?!!?=", b"<![CDATA[", b"&#x110000;",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser: what it parses, and how to call it.

    `parses` names the modules of the package that the target reaches. `raises` are the documented errors. `words` are
    added to the general ones.
    """

    name: str
    parses: tuple[str, ...]
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    raises: tuple[type[Exception], ...] = ()
    words: tuple[bytes, ...] = ()


class ClassifiedResult(str):
    """A result that a target has classified itself."""

    __slots__ = ()


class Failure(Exception):
    """An input on which a parser did something that its documentation does not say."""

    def __init__(self, target: Target, data: bytes, reason: str) -> None:
        super().__init__(f"{target.name}: {reason}\ninput: {data[:400]!r}")
        self.target = target
        self.data = data
        self.reason = reason


class _Hang(BaseException):
    """Raised inside a parser that does not return. Not an `Exception`, which the parser might catch."""


@contextmanager
def interrupting() -> Iterator[None]:
    """Interrupt a parser after `HANG_SECONDS` of CPU time. Works in the main thread only."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check(target: Target, data: bytes, *, measured: bool = False) -> str:
    """Run one input, inside of `interrupting`. Return what came of it, without details; raise `Failure`."""
    if measured:
        tracemalloc.start()
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    began = time.thread_time()
    try:
        outcome = _outcome(target, data)
    except _Hang:
        raise Failure(target, data, f"did not return within {HANG_SECONDS:g} seconds of CPU time") from None
    finally:
        took = time.thread_time() - began
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        if measured:
            tracemalloc.stop()
    if took > SECONDS_MAX and not measured:
        raise Failure(target, data, f"took {took:.2f} seconds of CPU time")
    if peak > MEMORY_BYTES_MAX:
        raise Failure(target, data, f"needed {peak} bytes of memory")
    return outcome


def _outcome(target: Target, data: bytes) -> str:
    try:
        found = target.run(data)
    except target.raises as error:
        return f"{type(error).__name__} {re.sub('[^a-z ]', '', str(error)[:80])}"
    except Exception as error:
        raise Failure(target, data, f"{type(error).__name__}: {error}"[:300]) from error
    if isinstance(found, ClassifiedResult):
        return found
    return f"{type(found).__name__} {len(repr(found)).bit_length()}"


@dataclass
class Fuzzer:
    """One run of a target. The same seed gives the same inputs, as long as the parser is the same."""

    target: Target
    random: random.Random
    inputs: int = 0
    outcomes: set[str] = field(default_factory=set)
    _pool: list[bytes] = field(default_factory=list)

    def run(self, *, seconds: float, inputs_max: int | None = None) -> None:
        """Send the seeds, and then mutations of them until the time is over. Raise `Failure` for the first failure."""
        self._pool = list(self.target.seeds)
        with interrupting():
            for data in self.target.seeds:
                self._send(data)
            end = time.monotonic() + seconds
            while time.monotonic() < end and (inputs_max is None or self.inputs < inputs_max):
                self._send(mutated(self.random, self._pool, (*WORDS, *self.target.words)))

    def _send(self, data: bytes) -> None:
        self.inputs += 1
        outcome = check(self.target, data, measured=self.inputs % MEASURE_EVERY == 0)
        if outcome not in self.outcomes:
            self.outcomes.add(outcome)
            if len(self._pool) < _POOL_MAX:
                self._pool.append(data)


def mutated(draw: random.Random, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one to four mutations of an input of the pool."""
    data = bytearray(draw.choice(pool))
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        at = draw.randint(0, len(data))
        to = min(len(data), at + draw.choice((1, 1, 2, 4, 8, 16, 64)))
        match draw.randrange(9):
            case 0:
                data[at:at] = draw.choice(words)
            case 1:
                data[at:to] = draw.choice(words)
            case 2:
                del data[at:to]
            case 3:
                data[at:at] = data[at:to] * draw.choice((1, 1, 2, 10, 100))
            case 4:
                del data[at:]
            case 5:
                other = draw.choice(pool)
                data[at:] = other[draw.randint(0, len(other)) :]
            case 6:
                data[at:to] = draw.randbytes(to - at)
            case 7:
                other_at = draw.randint(0, len(data))
                data[at:at] = data[other_at : other_at + to - at]
            case _:
                if at < len(data):
                    data[at] ^= 1 << draw.randrange(8)
    return bytes(data[:INPUT_BYTES_MAX])
