"""The ledger: claim a key, settle its outcome, read entries. Every operation is one round trip to the store.

    begin · renew · mark · settle · fail · doubt · release · resolve · abandon · forget · read · scan · purge · append ·
    chunks

`run`, `once` and `cached` combine these operations. `blocking` offers all of them to synchronous code.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from onceward.core import claim as machine
from onceward.core.claim import (
    EXPIRED,
    SECOND,
    WIRE_STATUSES,
    Append,
    Begin,
    Busy,
    Claim,
    Entry,
    Expired,
    Found,
    InDoubt,
    Mark,
    Mismatch,
    Move,
    Ref,
    Replay,
    Status,
    Verb,
)
from onceward.core.fingerprint import fingerprint as fingerprint_of
from onceward.core.key import LABEL_BYTES_MAX, NOTE_BYTES_MAX, check_key, check_namespace, check_scope, clip, short_key
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, NOTHING, Outcome, as_bytes, inline, pack
from onceward.core.verdict import Committed, NotCommitted
from onceward.errors import ClaimLost, InvalidOption
from onceward.ledger import decorators, internals, run
from onceward.ledger.closing import Closing
from onceward.ledger.doubts import DoubtNotifier, LogKeys, OnDoubt
from onceward.ledger.holder import holder, proved_dead
from onceward.ledger.provider_key import Secrets
from onceward.ledger.terms import (
    LEASE_SECONDS_MAX,
    RETAIN_SECONDS_MAX,
    EffectClass,
    RunOptions,
    check_limit,
    check_seconds,
    refuse_of,
    span,
    terms_for,
)
from onceward.ledger.write_retry import RetryingWriter
from onceward.store import PAGE_MAX, Page, Store
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.renewal import WatchResult
from onceward.store.write_id import write_id

if TYPE_CHECKING:
    from onceward.ledger.blocking import Blocking

__all__ = ["Busy", "Claim", "Entry", "Expired", "InDoubt", "Ledger", "Mismatch", "Outcome", "Replay", "Status"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# The methods return the coroutine of `_move` itself. An `async def` around it would add a frame to every wait.
MoveCoroutine: TypeAlias = Coroutine[Any, Any, bool]

# Long enough that a busy process renews in time, and short enough that a crash is noticed.
LEASE_SECONDS = 30.0
RETAIN_SECONDS = 24 * 3600.0
WAIT_SECONDS = 30.0
# How long a begin is repeated while the store does not respond. A settle is repeated for as long as the lease, or for
# `patience_seconds`.
BEGIN_SECONDS = 5.0


class Ledger(Closing):
    """Claims keys and records outcomes in a store. Usually created by `open_ledger`.

    A ledger may be used from any thread and any event loop of the process. All of them share batches.

    Args:
        store: The store that keeps the entries. The ledger closes it.
        lease_seconds: The time for which a silent holder keeps its claim. Claims are renewed while their effects run.
        retain_seconds: The time for which an outcome is replayed, counted from its settle.
        wait_seconds: The time for which a concurrent caller of `run` waits for the holder before it gets `errors.Busy`.
        namespace: Separates ledgers that share one store: 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
        patience_seconds: The time for which a write is repeated while the store does not respond. The default is
            `lease_seconds`; a begin is repeated for at most 5 seconds.
        on_doubt: A function, sync or async, that is called with the entry of each claim that this process puts in
            doubt. It runs on a separate thread.
        log_keys: How the log event `claim_in_doubt` shows keys that clients chose: `"short"` or `"whole"`.
        secret: A text or bytes of at least 16 bytes, from which `key_for` derives keys that nobody else can guess.
        secrets: Instead of `secret`, several of them, the newest first. An entry keeps the one with which it was begun.
        dispatcher: Replaces the dispatcher to the store, for simulations.

    Raises:
        InvalidOption: If a number of seconds is out of range, or a secret or `log_keys` is not valid.
        InvalidKey: If the namespace is not valid.
    """

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
        log_keys: LogKeys = "short",
        secret: str | bytes | None = None,
        secrets: Sequence[str | bytes] | None = None,
        dispatcher: Batcher | None = None,
    ) -> None:
        self.lease_seconds = check_seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MAX, positive=True)
        self.retain_seconds = check_seconds("retain_seconds", retain_seconds, RETAIN_SECONDS_MAX)
        self.wait_seconds = check_seconds("wait_seconds", wait_seconds, LEASE_SECONDS_MAX)
        self.namespace = check_namespace(namespace)
        write_seconds = self.lease_seconds if patience_seconds is None else patience_seconds
        self._write_seconds = check_seconds("patience_seconds", write_seconds, LEASE_SECONDS_MAX)
        self._lease = int(self.lease_seconds * SECOND)
        self._retain = int(self.retain_seconds * SECOND)
        self._secrets = Secrets.of(secret, secrets)
        self._doubts = DoubtNotifier(on_doubt, log_keys)
        self._dispatcher: Batcher = dispatcher or Batcher(store, proved_dead)
        self._dispatcher.on_doubt = self._doubts.notify
        self._write = RetryingWriter(self._dispatcher).write

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
        """Ask for a key: claim it, or find out why it cannot be claimed.

        If the key is held by a process that is proved dead, its lease counts as lapsed.

        Args:
            scope: The part of the identity that separates layers, tenants and principals.
            key: The name of the work.
            fingerprint: The arguments of the work. The same key with other arguments gives `Mismatch`.
            repeatable: Whether the effect may run again if this holder disappears. Otherwise its entry goes in doubt.
            lease_seconds: The lease of the claim. By default, the ledger's.
            retain_seconds: The retention of the entry if its holder disappears. By default, the ledger's.
            user_id: A label for operators.
            endpoint: A label for operators.

        Returns:
            `Claim` if the caller may run the effect; otherwise `Replay`, `Busy`, `Mismatch`, `InDoubt` or `Expired`.

        Raises:
            InvalidKey: If the scope, the key, a label or the fingerprint is not valid.
            InvalidOption: If a number of seconds is out of range.
            StoreUnavailable: If the store did not respond, or refused.
            InsideBoundTransaction: If the task has an open bound transaction.
            StoreClosed: If the ledger is closed.
        """
        write = Begin(
            self._scope(scope),
            check_key(key),
            write_id(),
            fingerprint_of(fingerprint),
            holder(),
            repeatable,
            self._lease_of(lease_seconds),
            self._retain_of(retain_seconds),
            clip(user_id, LABEL_BYTES_MAX),
            clip(endpoint, LABEL_BYTES_MAX),
            0,
            self._secrets.key_basis,
        )
        found = machine.found(write, await self._write(write, min(BEGIN_SECONDS, self._write_seconds)))
        while isinstance(found, Busy) and not found.locked and self._dispatcher.proved_dead(found.entry.holder):
            if found.entry.version == write.dead:
                break
            write = replace(write, write_id=write_id(), dead=found.entry.version)
            found = machine.found(write, await self._write(write, min(BEGIN_SECONDS, self._write_seconds)))
        return found

    def renew(self, claim: Claim, lease_seconds: float | None = None) -> MoveCoroutine:
        """Extend the lease of a claim.

        Args:
            claim: The claim to renew.
            lease_seconds: The new lease, counted from now. By default, the ledger's.

        Returns:
            False if the claim is lost.

        Raises:
            InvalidOption: If `lease_seconds` is out of range.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        return self._move(claim, Verb.RENEW, lease=self._lease_of(lease_seconds), retain=self._retain_of(None))

    def lapse(self, claim: Claim) -> MoveCoroutine:
        """End the lease of a claim without reporting what happened, so that the next caller takes over.

        Args:
            claim: The claim to give up.

        Returns:
            False if the claim is lost.

        Raises:
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        return self._move(claim, Verb.RENEW, lease=0, retain=self._retain_of(None))

    def settle(
        self,
        claim: Claim,
        outcome: Outcome,
        retain_seconds: float | None = None,
        *,
        refuse_seconds: float | None = None,
        retain_ever: bool = False,
    ) -> MoveCoroutine:
        """Record the outcome of an effect and end its claim.

        Args:
            claim: The claim under which the effect ran. A claim in doubt is accepted too (a late receipt).
            outcome: The outcome to record.
            retain_seconds: The time for which the outcome is replayed. By default, the ledger's.
            refuse_seconds: The time after that for which a begin gets `Expired`. By default, the key is free then.
            retain_ever: Whether the entry never expires. Only its result is dropped after `retain_seconds`.

        Returns:
            False if the claim is lost. Then this outcome is not recorded.

        Raises:
            InvalidOption: If the outcome is too large for its entry, or `retain_seconds` is out of range.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        refuse = refuse_of(refuse_seconds, retain_ever=retain_ever)
        retain = self._retain_of(retain_seconds)
        return self._move(claim, Verb.SETTLE, retain=retain, outcome=inline(outcome), refuse=refuse)

    def fail(
        self, claim: Claim, note: str = "", retain_seconds: float | None = None, *, not_done: bool = False
    ) -> MoveCoroutine:
        """Record that the attempt failed, and that the effect may run again.

        Args:
            claim: The claim under which the effect ran.
            note: The reason, for operators.
            retain_seconds: The time for which the failed entry is kept. By default, the ledger's.
            not_done: Whether the attempt certainly did nothing. The keys of `key_for` change then.

        Returns:
            False if the claim is lost.

        Raises:
            InvalidOption: If `retain_seconds` is out of range.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        verb = Verb.NOT_DONE if not_done else Verb.FAIL
        return self._move(claim, verb, retain=self._retain_of(retain_seconds), note=note)

    def doubt(self, claim: Claim, note: str = "") -> MoveCoroutine:
        """Record that it is unknown whether the effect happened, and that it must not be repeated.

        Args:
            claim: The claim under which the effect ran.
            note: The reason, for operators.

        Returns:
            False if the claim is lost.

        Raises:
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        return self._move(claim, Verb.DOUBT, note=note)

    async def release(self, claim: Claim) -> bool:
        """Give a claim back as if it had never been asked for.

        A claim that took over from a silent holder is not released, because that holder may have done something. Its
        lease ends instead, so that the next caller takes over, and knows that it did.

        Args:
            claim: The claim to give back.

        Returns:
            False if the claim is lost.

        Raises:
            StoreUnavailable: If the store did not respond; the write may have been applied.
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
        refuse_seconds: float | None = None,
        retain_ever: bool = False,
    ) -> bool:
        """End a doubt by a verdict, if the entry is still in doubt under the same version.

        Args:
            scope: The scope of the entry.
            key: The key of the entry.
            version: The version of the entry in doubt.
            verdict: `committed(value)` or `not_committed(reason)`. A value that is an `Outcome` is recorded as it is.
            note: The name of the person or program that decided, and the reason.
            retain_seconds: The retention of the resolved entry. By default, the ledger's.
            refuse_seconds: See `settle`; for `committed` only.
            retain_ever: See `settle`; for `committed` only. Required for a tool with `once="ever"`: without it the entry
                expires, and the tool can run again.

        Returns:
            False if the entry is not in doubt under this version.

        Raises:
            InvalidOption: If the verdict does not end the doubt, or an option is not valid.
            InvalidKey: If the scope or the key is not valid.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        match verdict:
            case Committed(value):
                verb = Verb.UPHOLD
                outcome = inline(value) if isinstance(value, Outcome) else Outcome(body=pack(value, INLINE_BYTES_MAX))
            case NotCommitted():
                verb, outcome = Verb.OVERTURN, NOTHING
            case _:
                raise InvalidOption(f"verdict must be committed(value) or not_committed(reason), not {verdict!r}")
        write = Move(
            self._scope(scope), check_key(key), write_id(), verb, version,
            retain=self._retain_of(retain_seconds), outcome=outcome, note=clip(note, NOTE_BYTES_MAX),
            refuse=refuse_of(refuse_seconds, retain_ever=retain_ever),
        )  # fmt: skip
        return machine.committed(write, await self._write(write, self._write_seconds))

    async def abandon(self, scope: str, key: str, version: int, *, note: str, force: bool = False) -> bool:
        """End the claim of another holder.

        The claim must have lapsed, or this process must be able to prove that its holder is dead. A repeatable claim
        becomes failed; any other goes in doubt.

        Args:
            scope: The scope of the entry.
            key: The key of the entry.
            version: The version of the claim.
            note: The name of the person or program that decided, and the reason.
            force: Also end a claim whose lease still runs. It always goes in doubt, because its holder may be alive. A
                later settle by that holder still counts.

        Returns:
            False if it was refused: the lease still runs, or the entry has another version or is not held.

        Raises:
            InvalidKey: If the scope or the key is not valid.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        full, key, note = self._scope(scope), check_key(key), clip(note, NOTE_BYTES_MAX)

        async def moved(verb: Verb) -> bool:
            write = Move(full, key, write_id(), verb, version, retain=self._retain, note=note)
            return machine.committed(write, await self._write(write, self._write_seconds))

        if await moved(Verb.ABANDON):
            return True
        entry = await self._read_ref(Ref(full, key))
        if entry is None or entry.version != version or entry.status is not Status.IN_PROGRESS:
            return False
        if self._dispatcher.proved_dead(entry.holder):
            return await moved(Verb.ABANDON_DEAD)
        return force and await moved(Verb.DOUBT)

    async def forget(self, scope: str, key: str, version: int, *, note: str) -> bool:
        """Remove a settled entry before its retention is over. The next caller runs the effect again.

        This is the only way to remove an entry that never expires. A later claim of the key has a greater version.

        Args:
            scope: The scope of the entry.
            key: The key of the entry.
            version: The version of the settled entry.
            note: The name of the person or program that decided, and the reason.

        Returns:
            False if the entry is not settled under this version. A claim that is held or in doubt is never forgotten.

        Raises:
            InvalidKey: If the scope or the key is not valid.
            StoreUnavailable: If the store did not respond; the write may have been applied.
        """
        write = Move(
            self._scope(scope), check_key(key), write_id(), Verb.FORGET, version, note=clip(note, NOTE_BYTES_MAX)
        )
        return machine.committed(write, await self._write(write, self._write_seconds))

    async def append(self, claim: Claim, seq: int, chunks: Sequence[bytes]) -> None:
        """Add chunks to the chunk log of a claim.

        Args:
            claim: The claim under which the effect runs.
            seq: The number of the first of these chunks, counted from 1. It must follow the chunks that are stored.
            chunks: The chunks, at most 64 KiB each.

        Raises:
            ClaimLost: If the claim was taken over.
            InvalidOption: If a chunk is too large or is not bytes.
            StoreUnavailable: If the store did not respond; some of the chunks may have been stored.
        """
        chunks = [as_bytes(chunk) for chunk in chunks]
        if any(len(chunk) > CHUNK_BYTES_MAX for chunk in chunks):
            raise InvalidOption(f"a chunk may have at most {CHUNK_BYTES_MAX} bytes")
        entry = claim.entry
        for start in range(0, len(chunks), CHUNKS_PER_WRITE):
            part = tuple(chunks[start : start + CHUNKS_PER_WRITE])
            write = Append(entry.scope, entry.key, write_id(), entry.version, seq + start, part)
            if not machine.committed(write, await self._write(write, self._write_seconds)):
                raise ClaimLost(f"the claim on {short_key(entry.key)!r} was taken over; its chunks were not stored")

    async def mark(self, claim: Claim, seq: int, text: str) -> None:
        """Record a recovery point. Effects use `current_claim().recovery_point(value)` instead.

        Args:
            claim: The claim under which the effect runs. A claim in doubt is accepted too.
            seq: The number of the recovery point, above `claim.entry.recovery_seq` and any that was recorded since.
            text: The text to store.

        Raises:
            ClaimLost: If the claim was taken over, or has ended.
            InsideBoundTransaction: If the task has an open bound transaction.
            StoreUnavailable: If the store did not respond; the text may have been stored.
        """
        entry = claim.entry
        write = Mark(entry.scope, entry.key, write_id(), entry.version, seq, text)
        if not machine.committed(write, await self._write(write, self._write_seconds)):
            raise ClaimLost(f"the claim on {short_key(entry.key)!r} was taken over or has ended; stop, and call again")

    # Reading.

    async def read(self, scope: str, key: str) -> Entry | None:
        """Return the entry of a key, or None if there is none or its retention is over.

        Args:
            scope: The scope of the entry.
            key: The key of the entry.

        Returns:
            The entry, or None.

        Raises:
            InvalidKey: If the scope or the key is not valid.
            StoreUnavailable: If the store did not respond.
        """
        return await self._read_ref(Ref(self._scope(scope), check_key(key)))

    async def _read_ref(self, ref: Ref) -> Entry | None:
        """Read by ref, like `read`."""
        reading = await self._dispatcher.read([ref])
        entry = reading.entries[0]
        return None if entry is None or entry.absent(reading.now) else entry

    async def scan(
        self, scope: str | None = None, status: Status | str | None = None, *, after: str = "", limit: int = 100
    ) -> Page:
        """Return a page of entries of this ledger's namespace.

        Args:
            scope: Only entries of this scope.
            status: Only entries with this status; `expired` for those whose retention is over and whose key is refused.
            after: The `next` of the previous page.
            limit: The most entries of a page, 1 to 500.

        Returns:
            A page, which may be short or empty even if there are more. `page.next` continues the scan; it is empty at
            the end.

        Raises:
            InvalidOption: If the status, the cursor or the limit is not valid.
            InvalidKey: If the scope is not valid.
            StoreUnavailable: If the store did not respond.
        """
        check_limit(limit)
        if not isinstance(after, str):
            raise InvalidOption(f"after= must be the next of an earlier page, not {after!r}")
        try:
            wanted = None if status is None else Status.COMPLETED if status == EXPIRED else Status(status)
        except ValueError as error:
            raise InvalidOption(f"status must be one of {', '.join(WIRE_STATUSES)}, not {status!r}") from error
        full = None if scope is None else self._scope(scope)
        page = await self._dispatcher.call(lambda store: store.scan(full, wanted, after, limit))
        if status == EXPIRED and page.entries:
            now = (await self._dispatcher.read([])).now
            page = Page(tuple(entry for entry in page.entries if entry.expired(now)), page.next)
        if full is not None:
            return page
        prefix = f"{self.namespace}:"
        return Page(tuple(entry for entry in page.entries if entry.scope.startswith(prefix)), page.next)

    async def chunks(self, entry: Entry, after: int = 0, limit: int = PAGE_MAX) -> list[bytes]:
        """Return chunks of a claim, in order.

        Args:
            entry: The entry, whose version identifies the claim.
            after: The number of the last chunk that the caller has.
            limit: The most chunks to return.

        Returns:
            The chunks that follow number `after`. Empty if there are none, or the entry has another version by now.

        Raises:
            StoreUnavailable: If the store did not respond.
        """
        return await self._dispatcher.call(lambda store: store.chunks(entry.ref, entry.version, after, limit))

    async def body(self, entry: Entry) -> bytes | None:
        """Return the whole stored body of an entry, inline or from its chunks.

        Args:
            entry: The entry to read.

        Returns:
            The body, or None if no body was stored or its chunks were purged.

        Raises:
            StoreUnavailable: If the store did not respond.
        """
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

    async def wait(self, entry: Entry, seconds: float) -> WatchResult:
        """Wait until a held entry is settled, failed, in doubt or lapsed, or its holder is proved dead.

        Args:
            entry: The held entry.
            seconds: The longest wait.

        Returns:
            The entry as last read, and whether its holder is proved dead.

        Raises:
            StoreUnavailable: If the store did not respond.
        """
        return await self._dispatcher.watch(entry.ref, seconds)

    async def purge(self, limit: int = PAGE_MAX) -> int:
        """Delete entries whose retention is over. Repeat until it returns 0.

        Args:
            limit: The most entries to delete, 1 to 500.

        Returns:
            The number of deleted entries.

        Raises:
            InvalidOption: If the limit is out of range.
            StoreUnavailable: If the store did not respond.
        """
        check_limit(limit)
        return await self._dispatcher.call(lambda store: store.purge(limit))

    async def doubt_lapsed(self, limit: int = PAGE_MAX) -> int:
        """Put lapsed claims that are not repeatable in doubt. Repeat until it returns 0.

        Args:
            limit: The most claims to put in doubt, 1 to 500.

        Returns:
            The number of claims that were put in doubt.

        Raises:
            InvalidOption: If the limit is out of range.
            StoreUnavailable: If the store did not respond.
        """
        check_limit(limit)
        return await self._dispatcher.put_in_doubt(limit)

    def purge_every(self, seconds: float) -> None:
        """Start the background purge: delete expired entries, and put lapsed claims that are not repeatable in doubt.

        It runs a page at a time for as long as the ledger is open.

        Args:
            seconds: The time between two runs.

        Raises:
            InvalidOption: If `seconds` is out of range.
        """
        self._dispatcher.purge_every(check_seconds("purge_seconds", seconds, RETAIN_SECONDS_MAX, positive=True))

    # Effects.

    @overload
    async def run(
        self, key: str, effect_fn: Callable[[], Awaitable[T]], *,
        effect: EffectClass, fingerprint: object = None, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip

    @overload
    async def run(
        self, key: str, effect_fn: Callable[[], T], *,
        effect: EffectClass, fingerprint: object = None, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip

    async def run(
        self,
        key: str,
        effect_fn: Callable[[], Any],
        *,
        effect: EffectClass,
        fingerprint: object = None,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run an effect once for its key. Every other caller with the same key gets the recorded result.

        Args:
            key: The name of the work.
            effect_fn: A function without arguments, `def` or `async def`, that has the effect and returns its result.
            effect: The effect class: pure, idempotent, compensatable or irreversible.
            fingerprint: The arguments of the work. The same key with other arguments raises `KeyReused`.
            options: The other fields of `onceward.ledger.terms.Terms`.

        Returns:
            The result of the effect, from running it now or as it was recorded.

        Raises:
            KeyReused: If the key was used with another fingerprint.
            Busy: If another caller still holds the key after the wait time.
            InDoubt: If the effect may have happened and must not be repeated.
            ClaimLost: If another holder took over the claim and no outcome is recorded.
            OutcomeNotKept: If the effect happened but its result could not be stored or rebuilt.
            Expired: If the effect happened, its retention is over, and `after_retention` is `"refuse"`.
            TransactionConflict: If the bound transaction of a repeatable effect was rolled back.
            StoreUnavailable: If the store did not respond.
            InvalidKey: If the key or the fingerprint is not valid.
            InvalidOption: If an option or the effect is not valid.
            BaseException: Any exception of the effect itself.
        """
        return await run.run(self, key, effect_fn, fingerprint=fingerprint, terms=terms_for(effect, options))

    def once(
        self,
        *,
        key: str | Callable[..., str],
        effect: EffectClass,
        ignore: Sequence[str] = (),
        **options: Unpack[RunOptions],
    ) -> Callable[[F], F]:
        """Decorate a function whose effect must happen once for each key.

        The arguments of a call are its fingerprint. Calls raise the exceptions of `run`.

        Args:
            key: A template such as `"charge:{order_id}"`, or a function of the same arguments that returns the key.
            effect: The effect class: pure, idempotent, compensatable or irreversible.
            ignore: Parameters that are not part of the fingerprint.
            options: The other fields of `onceward.ledger.terms.Terms`.

        Returns:
            A decorator for a `def` or an `async def`.

        Raises:
            InvalidOption: If an option or the decorated object is not valid.
            InvalidKey: If the template is not valid for the function.
        """
        return decorators.once(self, key, ignore, terms_for(effect, options))

    def cached(
        self,
        *,
        key: str | Callable[..., str],
        for_seconds: float,
        depends_on: object = None,
        ignore: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Decorate a function whose value may be computed again. Not for effects.

        The value is computed again when the arguments or the dependencies change, or when it is too old.

        Args:
            key: A template such as `"rates:{currency}"`, or a function of the same arguments that returns the key.
            for_seconds: The time for which a value is used.
            depends_on: Anything else that the value depends on, or a function without arguments that returns it.
            ignore: Parameters that do not matter for the value.

        Returns:
            A decorator for a `def` or an `async def`.

        Raises:
            InvalidOption: If an option or the decorated object is not valid.
            InvalidKey: If the template is not valid for the function.
        """
        return decorators.cached(self, key, ignore, for_seconds, depends_on)

    @functools.cached_property
    def blocking(self) -> Blocking:
        """The same methods for synchronous code."""
        from onceward.ledger.blocking import Blocking  # noqa: PLC0415  # that module imports this class

        return Blocking(self)

    def close(self) -> None:
        """Finish queued writes and close the store. Safe to call twice."""
        self._dispatcher.close()
        self._doubts.close()

    # Internals. The rest of the package reaches them through `ledger/internals.py`.

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return an internal by the name that it had in 0.1, with a warning."""
            return internals.earlier(self, name)

    def _lease_of(self, seconds: float | None) -> int:
        if seconds is None:
            return self._lease
        return span("lease_seconds", seconds)

    def _retain_of(self, seconds: float | None) -> int:
        if seconds is None:
            return self._retain
        return span("retain_seconds", seconds)

    def _scope(self, scope: str) -> str:
        if not scope or not isinstance(scope, str):
            return check_scope(scope)
        return check_scope(f"{self.namespace}:{scope}")

    async def _move(
        self, claim: Claim, verb: Verb, *, lease: int = 0, retain: int = 0, outcome: Outcome = NOTHING, note: str = "",
        refuse: int = 0,
    ) -> bool:  # fmt: skip
        entry = claim.entry
        write = Move(
            entry.scope, entry.key, write_id(), verb, entry.version,
            lease=lease, retain=retain, outcome=outcome, note=clip(note, NOTE_BYTES_MAX), refuse=refuse,
        )  # fmt: skip
        return machine.committed(write, await self._write(write, self._write_seconds))


# Chunks in one write or read: at most 2 MiB, half of the largest batch.
CHUNKS_PER_WRITE = 32
