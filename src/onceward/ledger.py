"""The ledger: claim a key, settle its outcome, read what is there. Every verb is one round trip to the store.

    begin · renew · settle · fail · doubt · release · resolve · read · scan · purge · append · chunks

`run`, `once` and `cached` put the verbs together; `blocking` gives all of them to synchronous code.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from onceward import once, run
from onceward.closing import Closing
from onceward.core import claim as machine
from onceward.core.claim import (
    SECOND,
    Append,
    Begin,
    Busy,
    Claim,
    Entry,
    Found,
    InDoubt,
    Mismatch,
    Move,
    Ref,
    Replay,
    Status,
    Verb,
)
from onceward.core.fingerprint import fingerprint as fingerprint_of
from onceward.core.key import (
    LABEL_BYTES_MAX,
    NOTE_BYTES_MAX,
    check_key,
    check_namespace,
    check_scope,
    clip,
    shown,
)
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, NOTHING, Outcome, as_bytes, inline, pack
from onceward.core.verdict import Committed, NotCommitted
from onceward.delivery import Delivery
from onceward.doubts import Doubts, OnDoubt
from onceward.errors import ClaimLost, InvalidOption
from onceward.holder import holder, proved_dead
from onceward.store import PAGE_MAX, Page, Store
from onceward.store.batch import Batcher
from onceward.store.upkeep import Keep, Seen
from onceward.store.write_id import write_id
from onceward.terms import LEASE_SECONDS_MAX, RETAIN_SECONDS_MAX, Effect, Options, check_seconds, span, terms_for

if TYPE_CHECKING:
    from onceward.blocking import Blocking

__all__ = ["Busy", "Claim", "Entry", "InDoubt", "Ledger", "Mismatch", "Outcome", "Replay", "Status"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# To be awaited. Not made by a coroutine around another one: each is a frame that waits for the store, too.
Moving: TypeAlias = Coroutine[Any, Any, bool]

# Two slow requests' worth: long enough that a busy process renews in time, short enough that a crash is noticed.
LEASE_SECONDS = 30.0
RETAIN_SECONDS = 24 * 3600.0
WAIT_SECONDS = 30.0
# How long a claim is asked for while the store does not answer. Settling is tried for as long as the lease,
# unless `patience_seconds` says less.
BEGIN_SECONDS = 5.0


class Ledger(Closing):
    """Made by `open_ledger`. May be used from any thread and any event loop, all of which share batches."""

    def __init__(
        self,
        store: Store,
        *,
        lease_seconds: float = LEASE_SECONDS,
        retain_seconds: float = RETAIN_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        namespace: str = "onceward",
        patience_seconds: float | None = None,
        on_doubt: OnDoubt | None = None,
        line: Batcher | None = None,
    ) -> None:
        self.lease_seconds = check_seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MAX, positive=True)
        self.retain_seconds = check_seconds("retain_seconds", retain_seconds, RETAIN_SECONDS_MAX)
        self.wait_seconds = check_seconds("wait_seconds", wait_seconds, LEASE_SECONDS_MAX)
        self.namespace = check_namespace(namespace)
        patience = self.lease_seconds if patience_seconds is None else patience_seconds
        self._patience = check_seconds("patience_seconds", patience, LEASE_SECONDS_MAX)
        self._lease = int(self.lease_seconds * SECOND)
        self._retain = int(self.retain_seconds * SECOND)
        self._doubts = Doubts(on_doubt)
        self.line = line or Batcher(store, proved_dead)
        self.line.on_doubt = self._doubts.tell
        self._write = Delivery(self.line).write

    # Claims.

    async def begin(
        self,
        scope: str,
        key: str,
        fingerprint: object = None,
        *,
        repeatable: bool,
        lease_seconds: float | None = None,
        retain_seconds: float | None = None,
        user_id: str = "",
        endpoint: str = "",
    ) -> Found:
        """Ask for the key. A holder proved dead does not keep anyone waiting."""
        write = Begin(
            self._scope(scope),
            check_key(key),
            write_id(),
            fingerprint_of(fingerprint),
            holder(),
            repeatable,
            self.lease(lease_seconds),
            self.retain(retain_seconds),
            clip(user_id, LABEL_BYTES_MAX),
            clip(endpoint, LABEL_BYTES_MAX),
        )
        found = machine.found(write, await self._write(write, min(BEGIN_SECONDS, self._patience)))
        while isinstance(found, Busy) and not found.locked and self.line.proved_dead(found.entry.holder):
            if found.entry.version == write.dead:
                break
            write = replace(write, write_id=write_id(), dead=found.entry.version)
            found = machine.found(write, await self._write(write, min(BEGIN_SECONDS, self._patience)))
        return found

    def renew(self, claim: Claim, lease_seconds: float | None = None) -> Moving:
        """Extend the lease; false when the claim is lost."""
        return self._move(claim, Verb.RENEW, lease=self.lease(lease_seconds), retain=self.retain(None))

    def lapse(self, claim: Claim) -> Moving:
        """Let go of the claim without a word on what happened: the lease ends, and whoever comes next takes over."""
        return self._move(claim, Verb.RENEW, lease=0, retain=self.retain(None))

    def settle(self, claim: Claim, outcome: Outcome, retain_seconds: float | None = None) -> Moving:
        """Record the outcome; false when the claim is lost, and then this outcome is nobody's."""
        return self._move(claim, Verb.SETTLE, retain=self.retain(retain_seconds), outcome=inline(outcome))

    def fail(self, claim: Claim, note: str = "", retain_seconds: float | None = None) -> Moving:
        """Record that the attempt failed and may be repeated."""
        return self._move(claim, Verb.FAIL, retain=self.retain(retain_seconds), note=note)

    def doubt(self, claim: Claim, note: str = "") -> Moving:
        """Record that nobody knows whether the effect happened, and that it may not be repeated."""
        return self._move(claim, Verb.DOUBT, note=note)

    async def release(self, claim: Claim) -> bool:
        """Give the key back as if it had never been asked for.

        A claim that took over from a silent holder leaves that holder's traces: its lease ends, and whoever comes next
        takes over in turn.
        """
        if claim.took_over:
            return await self.lapse(claim)
        return await self._move(claim, Verb.RELEASE)

    async def resolve(
        self,
        scope: str,
        key: str,
        version: int,
        verdict: Committed | NotCommitted,
        *,
        note: str,
        retain_seconds: float | None = None,
    ) -> bool:
        """End a doubt by a verdict, if the entry is still in doubt under this very version; `note` says who and why."""
        match verdict:
            case Committed(value):
                verb = Verb.UPHOLD
                outcome = inline(value) if isinstance(value, Outcome) else Outcome(body=pack(value, INLINE_BYTES_MAX))
            case NotCommitted():
                verb, outcome = Verb.OVERTURN, NOTHING
            case _:
                raise InvalidOption(f"a doubt ends with committed(value) or not_committed(reason), not {verdict!r}")
        write = Move(
            self._scope(scope), check_key(key), write_id(), verb, version,
            retain=self.retain(retain_seconds), outcome=outcome, note=clip(note, NOTE_BYTES_MAX),
        )  # fmt: skip
        return machine.committed(write, await self._write(write, self._patience))

    async def abandon(self, scope: str, key: str, version: int, *, note: str, force: bool = False) -> bool:
        """End a claim of this very version for a holder that will not; false when it was refused.

        Refused while the lease runs, unless the holder is proved dead from here. A claim that may be repeated has failed
        then; any other is in doubt. `force` ends one whose lease still runs, always in doubt: its holder may be alive,
        and what it settles later still counts.
        """
        full, key, note = self._scope(scope), check_key(key), clip(note, NOTE_BYTES_MAX)

        async def moved(verb: Verb) -> bool:
            write = Move(full, key, write_id(), verb, version, retain=self._retain, note=note)
            return machine.committed(write, await self._write(write, self._patience))

        if await moved(Verb.ABANDON):
            return True
        entry = await self.look(Ref(full, key))
        if entry is None or entry.version != version or entry.status is not Status.IN_PROGRESS:
            return False
        if self.line.proved_dead(entry.holder):
            return await moved(Verb.ABANDON_DEAD)
        return force and await moved(Verb.DOUBT)

    async def append(self, claim: Claim, seq: int, chunks: Sequence[bytes]) -> None:
        """Add to the claim's chunk log, from number `seq` on (counted from 1); `ClaimLost` when it is not ours."""
        chunks = [as_bytes(chunk) for chunk in chunks]
        if any(len(chunk) > CHUNK_BYTES_MAX for chunk in chunks):
            raise InvalidOption(f"a chunk holds at most {CHUNK_BYTES_MAX} bytes")
        entry = claim.entry
        for start in range(0, len(chunks), CHUNKS_PER_WRITE):
            part = tuple(chunks[start : start + CHUNKS_PER_WRITE])
            write = Append(entry.scope, entry.key, write_id(), entry.version, seq + start, part)
            if not machine.committed(write, await self._write(write, self._patience)):
                raise ClaimLost(f"the claim on {shown(entry.key)!r} was taken over; its chunks go nowhere")

    # Looking.

    async def read(self, scope: str, key: str) -> Entry | None:
        """The entry, or None when there is none or its retention is over."""
        return await self.look(Ref(self._scope(scope), check_key(key)))

    async def look(self, ref: Ref) -> Entry | None:
        """As `read`, for an entry's own ref."""
        reading = await self.line.read([ref])
        entry = reading.entries[0]
        return None if entry is None or entry.absent(reading.now) else entry

    async def scan(
        self, scope: str | None = None, status: Status | str | None = None, *, after: str = "", limit: int = 100
    ) -> Page:
        """A page of entries of this ledger's namespace (perhaps a short one); `page.next` continues it."""
        _check_limit(limit)
        if not isinstance(after, str):
            raise InvalidOption(f"after= is what page.next was, not {after!r}")
        try:
            wanted = None if status is None else Status(status)
        except ValueError as error:
            raise InvalidOption(f"status is one of {', '.join(Status)}, not {status!r}") from error
        full = None if scope is None else self._scope(scope)
        page = await self.line.call(lambda store: store.scan(full, wanted, after, limit))
        if full is not None:
            return page
        prefix = f"{self.namespace}:"
        return Page(tuple(entry for entry in page.entries if entry.scope.startswith(prefix)), page.next)

    async def chunks(self, entry: Entry, after: int = 0, limit: int = PAGE_MAX) -> list[bytes]:
        """The chunks of this very claim that follow number `after`."""
        return await self.line.call(lambda store: store.chunks(entry.ref, entry.version, after, limit))

    async def body(self, entry: Entry) -> bytes | None:
        """The whole kept body, inline or from its chunks; None when nothing was kept."""
        outcome = entry.outcome
        if outcome.body is not None or not outcome.chunks:
            return outcome.body
        parts: list[bytes] = []
        while len(parts) < outcome.chunks:
            page = await self.chunks(entry, len(parts), CHUNKS_PER_WRITE)
            if not page:
                return None
            parts += page
        return b"".join(parts)

    async def wait(self, entry: Entry, seconds: float) -> Seen:
        """Wait until this held entry is settled, failed, in doubt, lapsed, or its holder proved dead."""
        return await self.line.watch(entry.ref, seconds)

    async def purge(self, limit: int = PAGE_MAX) -> int:
        """Delete at most `limit` entries whose retention is over; repeat until it says 0."""
        _check_limit(limit)
        return await self.line.call(lambda store: store.purge(limit))

    async def doubt_lapsed(self, limit: int = PAGE_MAX) -> int:
        """Put at most `limit` lapsed claims that may not be repeated in doubt; repeat until it says 0."""
        _check_limit(limit)
        return await self.line.put_in_doubt(limit)

    def purge_every(self, seconds: float) -> None:
        """In the background from now on, a page at a time and for as long as the ledger is open: purge, and put lapsed claims
        in doubt that may not be repeated.
        """
        self.line.purge_every(check_seconds("purge_seconds", seconds, RETAIN_SECONDS_MAX, positive=True))

    # Keeping a claim alive.

    def keep(self, claim: Claim, lease_seconds: float | None, retain_seconds: float | None, seconds: float) -> Keep:
        """Renew the claim in the background until `drop`, at most for `seconds`."""
        return self.line.keep(claim.entry, self.lease(lease_seconds), self.retain(retain_seconds), seconds)

    def drop(self, kept: Keep) -> None:
        self.line.drop(kept)

    # The public face.

    @overload
    async def run(
        self, key: str, effect_fn: Callable[[], Awaitable[T]], *,
        effect: Effect | str, fingerprint: object = None, **options: Unpack[Options],
    ) -> T: ...  # fmt: skip

    @overload
    async def run(
        self, key: str, effect_fn: Callable[[], T], *,
        effect: Effect | str, fingerprint: object = None, **options: Unpack[Options],
    ) -> T: ...  # fmt: skip

    async def run(
        self,
        key: str,
        effect_fn: Callable[[], Any],
        *,
        effect: Effect | str,
        fingerprint: object = None,
        **options: Unpack[Options],
    ) -> Any:
        """Run an effect once for its key, whoever asks and however often; see `Terms` for the options."""
        return await run.run(self, key, effect_fn, fingerprint=fingerprint, terms=terms_for(effect, options))

    def once(
        self,
        *,
        key: str | Callable[..., str],
        effect: Effect | str,
        ignore: Sequence[str] = (),
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """Decorate a function whose effect must happen once for each key; `def` and `async def`."""
        return once.once(self, key, ignore, terms_for(effect, options))

    def cached(
        self,
        *,
        key: str | Callable[..., str],
        for_seconds: float,
        depends_on: object = None,
        ignore: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Decorate a function whose value may be computed again: it is, when its arguments, what it depends on,
        or its age say so. Not for effects.
        """
        return once.cached(self, key, ignore, for_seconds, depends_on)

    @functools.cached_property
    def blocking(self) -> Blocking:
        """The same verbs for synchronous code."""
        from onceward.blocking import Blocking  # noqa: PLC0415  # it is made of this class

        return Blocking(self)

    def close(self) -> None:
        """Finish what is queued and let go of the store. Safe to call twice."""
        self.line.close()
        self._doubts.close()

    # Inside.

    def lease(self, seconds: float | None) -> int:
        if seconds is None:
            return self._lease
        return span("lease_seconds", seconds)

    def retain(self, seconds: float | None) -> int:
        if seconds is None:
            return self._retain
        return span("retain_seconds", seconds)

    def _scope(self, scope: str) -> str:
        if not scope or not isinstance(scope, str):
            return check_scope(scope)
        return check_scope(f"{self.namespace}:{scope}")

    async def _move(
        self, claim: Claim, verb: Verb, *, lease: int = 0, retain: int = 0, outcome: Outcome = NOTHING, note: str = ""
    ) -> bool:
        entry = claim.entry
        write = Move(
            entry.scope, entry.key, write_id(), verb, entry.version,
            lease=lease, retain=retain, outcome=outcome, note=clip(note, NOTE_BYTES_MAX),
        )  # fmt: skip
        return machine.committed(write, await self._write(write, self._patience))


def _check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise InvalidOption(f"limit is 1 to {PAGE_MAX}, not {limit!r}")


# A write of this many chunks fills a batch.
CHUNKS_PER_WRITE = 32
