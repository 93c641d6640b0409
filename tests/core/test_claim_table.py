"""The claim machine, cell by cell. The table here is written out by hand, so that it cannot agree by copying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onceward.core.claim import (
    EVER,
    SECOND,
    Append,
    Begin,
    Entry,
    Mark,
    Move,
    Status,
    Verb,
    Write,
    apply,
    mints,
)
from onceward.core.outcome import NOTHING, Outcome

NOW = 1_000 * SECOND
LEASE = 30 * SECOND
RETAIN = 600 * SECOND
OLD, NEW = 5, 6
DONE = Outcome(200, "{}", b"done")

BEGIN = Begin("s", "k", "w2", "print", "h2", repeatable=True, lease=LEASE, retain=RETAIN, user_id="u2", endpoint="e2")

HELD = Entry(
    scope="s",
    key="k",
    fingerprint="print",
    status=Status.IN_PROGRESS,
    version=OLD,
    attempt=3,
    write_id="w1",
    holder="h1",
    repeatable=True,
    lease_until=NOW + 1,
    expires_at=NOW + 1 + RETAIN,
    created_at=NOW - 9 * SECOND,
    claimed_at=NOW - 4 * SECOND,
    user_id="u1",
    endpoint="e1",
    note="why",
    recovery='"point"',
    recovery_seq=2,
    key_basis=4,
)
HELD_ONCE = replace(HELD, repeatable=False, expires_at=None)
LAPSED = replace(HELD, lease_until=NOW)
LAPSED_ONCE = replace(HELD_ONCE, lease_until=NOW)
IN_DOUBT = replace(LAPSED_ONCE, status=Status.IN_DOUBT)
SETTLED = replace(HELD, status=Status.COMPLETED, completed_at=NOW - 1, expires_at=NOW + 1, outcome=DONE)
FAILED = replace(HELD, status=Status.FAILED, completed_at=NOW - 1, expires_at=NOW + 1)
ABANDONED = replace(FAILED, completed_at=None)
RELEASED = replace(FAILED, expires_at=NOW)
EXPIRED = replace(SETTLED, expires_at=NOW)
EXPIRED_FAILURE = replace(FAILED, expires_at=NOW - 1)
REFUSED = replace(EXPIRED, refuse_until=NOW + 1)
FOR_EVER = replace(SETTLED, expires_at=None, refuse_until=NOW)

STATES: dict[str, Entry | None] = {
    "absent": None,
    "held": HELD,
    "held-once": HELD_ONCE,
    "lapsed": LAPSED,
    "lapsed-once": LAPSED_ONCE,
    "in-doubt": IN_DOUBT,
    "settled": SETTLED,
    "failed": FAILED,
    "abandoned": ABANDONED,
    "abandoned-long-ago": replace(ABANDONED, expires_at=NOW),
    "released": RELEASED,
    "expired": EXPIRED,
    "expired-failure": EXPIRED_FAILURE,
    "refused": REFUSED,
    "refused-without-result": REFUSED.without_result(),
    "no-longer-refused": replace(EXPIRED, refuse_until=NOW),
    "for-ever": FOR_EVER,
    "for-ever-without-result": FOR_EVER.without_result(),
}
FREE = ("absent", "abandoned-long-ago", "released", "expired", "expired-failure", "no-longer-refused")

FIRST = Entry(
    scope="s",
    key="k",
    fingerprint="print",
    status=Status.IN_PROGRESS,
    version=NEW,
    attempt=1,
    write_id="w2",
    holder="h2",
    repeatable=True,
    lease_until=NOW + LEASE,
    expires_at=NOW + LEASE + RETAIN,
    created_at=NOW,
    claimed_at=NOW,
    user_id="u2",
    endpoint="e2",
)
NEXT = replace(
    FIRST, attempt=4, created_at=HELD.created_at, note="why", recovery='"point"', recovery_seq=2, key_basis=4
)
DOUBTED = replace(LAPSED_ONCE, status=Status.IN_DOUBT, write_id="w2", expires_at=None)

BEGINS: dict[str, Entry | None] = {
    "absent": FIRST,
    "held": None,
    "held-once": None,
    "lapsed": NEXT,
    "lapsed-once": DOUBTED,
    "in-doubt": None,
    "settled": None,
    "failed": NEXT,
    "abandoned": NEXT,
    "abandoned-long-ago": FIRST,
    "released": FIRST,
    "expired": FIRST,
    "expired-failure": FIRST,
    "refused": None,
    "refused-without-result": None,
    "no-longer-refused": FIRST,
    "for-ever": None,
    "for-ever-without-result": None,
}

# The status that each verb leaves, with the right version; what is not here is refused.
HOLDING = ("held", "held-once", "lapsed", "lapsed-once")
MOVES: dict[tuple[str, Verb], Status] = {
    ("in-doubt", Verb.SETTLE): Status.COMPLETED,
    ("in-doubt", Verb.UPHOLD): Status.COMPLETED,
    ("in-doubt", Verb.OVERTURN): Status.FAILED,
    **{(state, Verb.RENEW): Status.IN_PROGRESS for state in HOLDING},
    **{(state, Verb.SETTLE): Status.COMPLETED for state in HOLDING},
    **{(state, Verb.FAIL): Status.FAILED for state in HOLDING},
    **{(state, Verb.NOT_DONE): Status.FAILED for state in HOLDING},
    **{(state, Verb.RELEASE): Status.FAILED for state in HOLDING},
    **{(state, Verb.DOUBT): Status.IN_DOUBT for state in HOLDING},
    ("lapsed", Verb.ABANDON): Status.FAILED,
    ("lapsed-once", Verb.ABANDON): Status.IN_DOUBT,
    ("held", Verb.ABANDON_DEAD): Status.FAILED,
    ("held-once", Verb.ABANDON_DEAD): Status.IN_DOUBT,
    ("lapsed", Verb.ABANDON_DEAD): Status.FAILED,
    ("lapsed-once", Verb.ABANDON_DEAD): Status.IN_DOUBT,
    **{
        (state, Verb.FORGET): Status.FAILED
        for state in ("settled", "refused", "refused-without-result", "for-ever", "for-ever-without-result")
    },
}


def moving(verb: Verb, version: int = OLD) -> Move:
    retain = 0 if verb in (Verb.RELEASE, Verb.FORGET) else RETAIN
    return Move("s", "k", "w2", verb, version, LEASE, retain, DONE, "because")


@pytest.mark.parametrize("state", STATES)
def test_begin_follows_the_claim_table(state: str) -> None:
    assert apply(STATES[state], BEGIN, NOW, NEW) == BEGINS[state]


@pytest.mark.parametrize("state", STATES)
def test_another_fingerprint_is_refused_in_every_state_but_absent(state: str) -> None:
    after = apply(STATES[state], replace(BEGIN, fingerprint="other"), NOW, NEW)

    assert after == (replace(FIRST, fingerprint="other") if state in FREE else None)


@pytest.mark.parametrize("state", STATES)
def test_a_stricter_caller_leaves_a_lapsed_claim_in_doubt(state: str) -> None:
    """The holder says whether work may be repeated; a later caller can only be stricter."""
    after = apply(STATES[state], replace(BEGIN, repeatable=False), NOW, NEW)

    expected = BEGINS[state]
    if state in ("lapsed", "abandoned"):
        there = LAPSED if state == "lapsed" else ABANDONED
        expected = replace(there, status=Status.IN_DOUBT, write_id="w2", expires_at=None)
    elif expected is not None and expected.status is Status.IN_PROGRESS:
        expected = replace(expected, repeatable=False, expires_at=None)
    assert after == expected


@pytest.mark.parametrize("state", STATES)
def test_a_proof_of_death_replaces_only_the_end_of_the_lease(state: str) -> None:
    after = apply(STATES[state], replace(BEGIN, dead=OLD), NOW, NEW)

    same_but_lapsed = {"held": "lapsed", "held-once": "lapsed-once"}.get(state, state)
    expected = BEGINS[same_but_lapsed]
    if state == "held-once":
        expected = replace(DOUBTED, lease_until=HELD_ONCE.lease_until)
    assert after == expected


@pytest.mark.parametrize("dead", [0, OLD - 1, OLD + 1])
def test_a_proof_of_death_of_another_version_has_no_effect(dead: int) -> None:
    assert apply(HELD, replace(BEGIN, dead=dead), NOW, NEW) is None


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", STATES)
def test_every_verb_follows_the_claim_table(state: str, verb: Verb) -> None:
    after = apply(STATES[state], moving(verb), NOW, NEW)

    status = MOVES.get((state, verb))
    assert (after.status if after is not None else None) == status
    assert after is None or (after.version, after.write_id) == (OLD, "w2")


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", [0, OLD - 1, OLD + 1])
def test_a_verb_with_another_version_is_refused(state: str, verb: Verb, version: int) -> None:
    assert apply(STATES[state], moving(verb, version), NOW, NEW) is None


def test_a_renewal_changes_only_the_lease() -> None:
    kept = replace(LAPSED, write_id="w2", lease_until=NOW + LEASE, expires_at=NOW + LEASE + RETAIN)
    once = replace(LAPSED_ONCE, write_id="w2", lease_until=NOW + LEASE)

    assert apply(LAPSED, moving(Verb.RENEW), NOW, NEW) == kept
    assert apply(LAPSED_ONCE, moving(Verb.RENEW), NOW, NEW) == once


@pytest.mark.parametrize(("entry", "verb"), [(HELD, Verb.SETTLE), (HELD, Verb.FAIL), (IN_DOUBT, Verb.UPHOLD)])
def test_an_end_records_its_time_outcome_note_and_retention(entry: Entry, verb: Verb) -> None:
    after = apply(entry, moving(verb), NOW, NEW)

    assert after == replace(
        entry,
        status=Status.FAILED if verb is Verb.FAIL else Status.COMPLETED,
        write_id="w2",
        expires_at=NOW + RETAIN,
        completed_at=NOW,
        note="because",
        outcome=DONE,
    )


def test_giving_up_into_doubt_keeps_all_fields_and_never_expires() -> None:
    assert apply(HELD, moving(Verb.DOUBT), NOW, NEW) == replace(
        HELD, status=Status.IN_DOUBT, write_id="w2", expires_at=None, note="because"
    )


def test_abandoning_records_the_reason_and_keeps_the_other_fields() -> None:
    """Repeatable work has failed; other work is in doubt, as `begin` would have left it."""
    assert apply(LAPSED, moving(Verb.ABANDON), NOW, NEW) == replace(
        LAPSED, status=Status.FAILED, write_id="w2", expires_at=NOW + RETAIN, note="because"
    )
    assert apply(LAPSED_ONCE, moving(Verb.ABANDON), NOW, NEW) == replace(DOUBTED, note="because")
    assert apply(LAPSED_ONCE, replace(moving(Verb.ABANDON), note=""), NOW, NEW) == DOUBTED


def test_a_lease_that_lapses_a_microsecond_later_still_holds() -> None:
    live = replace(LAPSED_ONCE, lease_until=NOW + 1)

    assert apply(live, moving(Verb.ABANDON), NOW, NEW) is None
    assert apply(live, moving(Verb.ABANDON), NOW + 1, NEW) is not None


def test_a_released_entry_reads_as_absent_at_once() -> None:
    after = apply(HELD, moving(Verb.RELEASE), NOW, NEW)

    assert after is not None
    assert after.absent(NOW)


@pytest.mark.parametrize("entry", [SETTLED, REFUSED, FOR_EVER, FOR_EVER.without_result()])
def test_a_forgotten_entry_reads_as_absent_at_once_and_purge_may_delete_it(entry: Entry) -> None:
    after = apply(entry, moving(Verb.FORGET), NOW, NEW)

    assert after is not None
    assert after.absent(NOW)
    assert after.purgeable(NOW)
    assert (after.version, after.note) == (entry.version, "because")
    assert apply(after, BEGIN, NOW, NEW) == FIRST


@pytest.mark.parametrize("state", STATES)
def test_only_the_holder_appends_chunks_and_without_gaps(state: str) -> None:
    entry = STATES[state]
    log = replace(entry, outcome=Outcome(chunks=2)) if entry is not None else None

    def after(seq: int, version: int = OLD) -> Entry | None:
        return apply(log, Append("s", "k", "w2", version, seq, (b"a", b"b")), NOW, NEW)

    appended = after(3)
    if state in HOLDING:
        assert log is not None
        assert appended == replace(log, write_id="w2", outcome=Outcome(chunks=4))
    else:
        assert appended is None
    assert [after(1), after(2), after(4), after(3, OLD + 1), after(3, OLD - 1)] == [None] * 5


@pytest.mark.parametrize("state", STATES)
def test_only_the_holder_marks_and_only_with_a_greater_number(state: str) -> None:
    entry = STATES[state]

    def after(seq: int, version: int = OLD) -> Entry | None:
        return apply(entry, Mark("s", "k", "w2", version, seq, '"new"'), NOW, NEW)

    if state in HOLDING:
        assert entry is not None
        assert after(3) == replace(entry, write_id="w2", recovery='"new"', recovery_seq=3)
    elif state == "in-doubt":
        # The write that put it in doubt still recognises itself.
        assert after(9) == replace(IN_DOUBT, recovery='"new"', recovery_seq=9)
    else:
        assert after(3) is None
    assert [after(0), after(1), after(2), after(3, OLD + 1), after(3, OLD - 1)] == [None] * 5


def _accepting(verb: Verb) -> Entry:
    if verb is Verb.FORGET:
        return SETTLED
    return IN_DOUBT if verb in (Verb.UPHOLD, Verb.OVERTURN) else LAPSED_ONCE


@pytest.mark.parametrize("verb", Verb)
def test_only_overturning_drops_the_recovery_point_and_counts_with_not_done(verb: Verb) -> None:
    entry = _accepting(verb)

    after = apply(entry, moving(verb), NOW, NEW)

    assert after is not None
    dropped, counted = verb is Verb.OVERTURN, verb in (Verb.NOT_DONE, Verb.OVERTURN)
    assert (after.recovery, after.recovery_seq) == ((None, 0) if dropped else ('"point"', 2))
    assert (after.key_basis, after.not_done_count) == ((5, 5) if counted else (4, 4))


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("refuse", [0, 7, EVER])
def test_only_a_recorded_outcome_fixes_what_follows_its_retention(verb: Verb, refuse: int) -> None:
    entry = _accepting(verb)

    plain, after = (apply(entry, replace(moving(verb), refuse=value), NOW, NEW) for value in (0, refuse))

    assert plain is not None
    until: tuple[int | None, int | None] = (plain.expires_at, None)
    if verb in (Verb.SETTLE, Verb.UPHOLD) and refuse:
        until = (None, NOW + RETAIN) if refuse == EVER else (NOW + RETAIN, NOW + RETAIN + 7)
    assert after == replace(plain, expires_at=until[0], refuse_until=until[1])


@pytest.mark.parametrize(
    ("entry", "expired", "droppable"),
    [
        (SETTLED, False, False),
        (replace(SETTLED, refuse_until=NOW + 5), False, False),
        (REFUSED, True, True),
        (REFUSED.without_result(), True, False),
        (replace(REFUSED, refuse_until=NOW), False, False),
        (replace(REFUSED.without_result(), expires_at=NOW, refuse_until=NOW), False, False),
        (EXPIRED, False, False),
        (FOR_EVER, False, True),
        (replace(FOR_EVER, refuse_until=NOW + 1), False, False),
        (FOR_EVER.without_result(), False, False),
    ],
)
def test_a_refusal_is_exact_to_the_microsecond(entry: Entry, expired: bool, droppable: bool) -> None:
    assert (entry.expired(NOW), entry.droppable(NOW)) == (expired, droppable)


@pytest.mark.parametrize("state", STATES)
def test_only_a_begin_that_runs_takes_a_version(state: str) -> None:
    entry = STATES[state]
    writes: list[Write] = [BEGIN, replace(BEGIN, repeatable=False), replace(BEGIN, dead=OLD)]
    writes += [moving(verb) for verb in Verb]
    for write in writes:
        after = apply(entry, write, NOW, NEW)

        if after is not None:
            assert mints(entry, write, NOW) == (after.version == NEW)


@pytest.mark.parametrize(
    ("entry", "absent", "lapsed", "purgeable"),
    [
        (HELD, False, False, False),
        (LAPSED, False, True, False),
        (replace(LAPSED, expires_at=NOW), False, True, True),
        (replace(LAPSED, expires_at=NOW + 1), False, True, False),
        (LAPSED_ONCE, False, True, False),
        (IN_DOUBT, False, False, False),
        (SETTLED, False, False, False),
        (EXPIRED, True, False, True),
        (FAILED, False, False, False),
        (REFUSED, False, False, False),
        (REFUSED.without_result(), False, False, False),
        (replace(REFUSED, refuse_until=NOW), True, False, True),
        (FOR_EVER, False, False, False),
        (RELEASED, True, False, True),
    ],
)
def test_an_expiry_is_exact_to_the_microsecond(entry: Entry, absent: bool, lapsed: bool, purgeable: bool) -> None:
    assert (entry.absent(NOW), entry.lapsed(NOW), entry.purgeable(NOW)) == (absent, lapsed, purgeable)


def test_a_retry_clears_the_outcome_of_the_last_attempt() -> None:
    failed = replace(FAILED, outcome=DONE)

    after = apply(failed, BEGIN, NOW, NEW)

    assert after is not None
    assert (after.outcome, after.completed_at) == (NOTHING, None)
