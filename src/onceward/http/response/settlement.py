"""Settlement: ends a keyed request as settled, failed, released or unknown. Shared by ASGI and WSGI.

It awaits only the ledger. After a claim was taken over, the outcome of its new holder counts
(`outcome_after_takeover`).
"""

from __future__ import annotations

import logging
import threading

from onceward.core.claim import Claim, Entry, Status
from onceward.core.log_event import log_event
from onceward.errors import ClaimLost, OncewardError, StoreUnavailable
from onceward.http import problem
from onceward.http.keyed.admission import Admission, KeyedRequest
from onceward.http.keyed.operation import ClaimBinding, Operation
from onceward.http.problem import Response
from onceward.http.response.recorder import ResponseRecorder
from onceward.http.stored.policy import keeps_success
from onceward.ledger.blocking import wait
from onceward.ledger.internals import dispatcher_of, read_ref, start_renewal
from onceward.ledger.terms import MAX_RUN_SECONDS
from onceward.ledger.transaction import forget_bound

# How long a worker that lost its claim waits for the outcome of the new holder.
TAKEOVER_SECONDS = 10.0


async def outcome_after_takeover(admission: Admission, request: KeyedRequest) -> Entry | Response:
    """Return the settled entry to replay, or the response to send if there is none."""
    try:
        entry = await _last_entry(admission, request)
    except StoreUnavailable as error:
        return problem.store_failed(error)
    if entry is None:
        return problem.busy()
    if request.is_changed_from(entry.fingerprint):
        return problem.principal_changed()
    if not request.is_served_by(entry.fingerprint):
        return problem.mismatch()
    match entry.status:
        case Status.COMPLETED:
            return entry
        case Status.IN_DOUBT:
            return problem.in_doubt()
        case Status.IN_PROGRESS | Status.FAILED:
            return problem.busy()


async def _last_entry(admission: Admission, request: KeyedRequest) -> Entry | None:
    """Read the entry when its current holder has finished, or when the waiting time is over."""
    ledger = admission.ledger
    deadline = dispatcher_of(ledger).monotonic() + TAKEOVER_SECONDS
    entry = await ledger.read(request.principal.scope, request.key)
    while entry is not None and request.is_served_by(entry.fingerprint) and entry.status is Status.IN_PROGRESS:
        remaining = deadline - dispatcher_of(ledger).monotonic()
        if remaining <= 0:
            break
        seen = await ledger.wait(entry, remaining)
        entry = seen.entry
        if entry is not None and entry.status is Status.IN_PROGRESS:
            break  # the new holder has vanished, too: the client's retry takes over
    return entry


_CLIENT_ERROR = 400
# The pause between two attempts to record an outcome while the store is down.
_PAUSE_SECONDS_MIN = 0.05
_PAUSE_SECONDS_MAX = 2.0

# How long recording is retried while the store is down. Longer than a lease: a lapsed claim can still be settled until
# another request claims its key, and that is better than a second effect.
LATE_SECONDS = 300.0

logger = logging.getLogger("onceward.http")


class Settlement:
    """The claim of one running request, until its outcome is recorded."""

    __slots__ = ("_admission", "_binding", "_claim", "_renews", "_request", "operation", "recorder")

    def __init__(self, admission: Admission, request: KeyedRequest, claim: Claim) -> None:
        ledger, rule = admission.ledger, request.rule
        renewal = start_renewal(ledger, claim, rule.lease_seconds, rule.retain_seconds, MAX_RUN_SECONDS)
        self._admission = admission
        self._request = request
        self._claim = claim
        self._renews = True
        self._binding = ClaimBinding(ledger, admission.codec, claim, rule, renewal)
        self.operation = Operation(request.key, self._binding)
        keeps = admission.keep_status if rule.webhook is None else keeps_success
        self.recorder = ResponseRecorder(ledger, admission.codec, claim, rule, keeps)

    def stop_renewal(self) -> None:
        """Stop renewing the claim."""
        self.operation.over = True
        if self._renews:
            self._renews = False
            self._binding.stop_renewal()

    @property
    def undecided(self) -> bool:
        """True if the handler's bound transaction is still open: whether it commits decides the outcome."""
        bound = self.operation.bound
        return bound is not None and bound.open

    @property
    def _retain_seconds(self) -> float | None:
        seconds = self.operation.retain_seconds
        return self._request.rule.retain_seconds if seconds is None else seconds

    async def release(self) -> None:
        """Release the claim: the handler was not called, or called `release()`."""
        self.stop_renewal()
        try:
            await self._admission.ledger.release(self._claim)
        except OncewardError as error:
            _not_recorded(error)

    async def settle(self, status: int, *, sent: bool) -> Response | None:
        """Record the response before its end is sent. Return the response to send instead, or None to continue.

        `sent`: a part of the response was already sent, so that it cannot be replaced. Raises `ClaimLost` if another
        holder's outcome counts, and `StoreUnavailable` if nothing could be recorded.
        """
        bound = self.operation.bound
        if bound is not None and bound.settled:
            if await self._committed():
                self.stop_renewal()
                return bound.response
            if status < _CLIENT_ERROR or bound.open:
                await self._not_committed()
                if sent:
                    raise ClaimLost("the bound transaction did not commit, but a part of its response was already sent")
                return problem.problem(503, "The transaction did not commit. Retry with the same key.", retry_after=1)
        elif bound is not None:
            log_event(
                logger.error,
                "bound_transaction_not_settled",
                reason="the response is settled outside of the transaction",
                hint="call bound.settle(response) before the transaction commits",
            )
            forget_bound()  # the connection may have begun another transaction by now; the lock of the entry decides
        elif self.operation.released:
            await self.release()
            return None
        if not self.operation.stored:
            self.recorder.forget()
        if not await self.recorder.finish(self._retain_seconds):
            raise ClaimLost("the claim of this request was taken over before its response was recorded")
        self.stop_renewal()
        if self.recorder.doubted:
            self._admission.observer.put_in_doubt(self._request.key)
        return None

    async def settle_late(self) -> None:
        """Keep trying to record a response whose client got 503."""
        dispatcher = dispatcher_of(self._admission.ledger)
        deadline = dispatcher.monotonic() + LATE_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while dispatcher.monotonic() < deadline:
            try:
                try:
                    await self.recorder.finish(self._retain_seconds)
                except StoreUnavailable:
                    await dispatcher.sleep(pause)
                    pause = min(pause * 2, _PAUSE_SECONDS_MAX)
                    continue
            except OncewardError as error:
                _not_recorded(error)
            return
        log_event(
            logger.warning,
            "response_not_recorded",
            tried_for_seconds=LATE_SECONDS,
            reason="the store was unavailable; a retry finds the claim lapsed",
        )

    async def raised(self, note: str) -> Response | None:
        """Record that the handler raised. Return its response if its bound transaction committed nevertheless."""
        self.stop_renewal()  # a renewal after the following write would undo it
        bound = self.operation.bound
        try:
            if bound is not None and bound.settled and await self._committed():
                return bound.response
            if self.undecided:
                await self._not_committed()
            else:
                await self._admission.failed(self._request, self._claim, note)
        except OncewardError as error:
            _not_recorded(error)
        return None

    async def unknown(self, note: str) -> None:
        """Record that the handler did not finish, so that its effect is unknown."""
        self.stop_renewal()
        try:
            if self.undecided:
                await self._not_committed()
            else:
                await self._admission.unknown(self._request, self._claim, note)
        except OncewardError as error:
            _not_recorded(error)

    async def _not_committed(self) -> None:
        """Record that the bound transaction has not committed.

        While its connection is in a transaction, which may be another one by now, nothing can be written from here.
        `record_failure_later` retries until that transaction is over.
        """
        if self.undecided:
            record_failure_later(self._admission, self._request, self._claim)
        else:
            await self._admission.failed(self._request, self._claim, "the bound transaction was rolled back")

    async def _committed(self) -> bool:
        """Return whether the outcome of the bound transaction is in the ledger."""
        entry = await read_ref(self._admission.ledger, self._claim.entry.ref)
        return entry is not None and (entry.version, entry.status) == (self._claim.version, Status.COMPLETED)


def record_failure_later(admission: Admission, request: KeyedRequest, claim: Claim) -> None:
    """Record in a separate thread that a bound request failed, once its transaction has released the entry."""

    def record() -> None:
        dispatcher = dispatcher_of(admission.ledger)
        deadline = dispatcher.monotonic() + LATE_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while dispatcher.monotonic() < deadline:
            try:
                wait(admission.failed(request, claim, "the bound transaction was rolled back"))
            except StoreUnavailable:
                # The entry is locked by the transaction, or the store is down.
                wait(_sleep(admission, pause))
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            except OncewardError as error:
                _not_recorded(error)
                return
            else:
                return

    threading.Thread(target=record, name="onceward-bound", daemon=True).start()


async def _sleep(admission: Admission, seconds: float) -> None:
    await dispatcher_of(admission.ledger).sleep(seconds)


def _not_recorded(error: OncewardError) -> None:
    log_event(logger.warning, "request_outcome_not_recorded", reason=str(error), claim="lapses at the end of its lease")
