-- The function that decides a batch on PostgreSQL in one round trip, and the functions that list entries. Runs once, in
-- one transaction, under a lock. Names contain a version, so that another version of Onceward can use the same database
-- with its own functions.

-- Entries that never expire, but whose results purge drops.
CREATE INDEX IF NOT EXISTS idx_idempotency_keys_drop ON platform_idempotency_keys (refuse_until)
    WHERE expires_at IS NULL AND refuse_until IS NOT NULL;

-- Keep out processes of schema 1, before the first write that they would damage. The application's role may not change
-- this table by itself, so the function runs with the rights of the role that created it.
CREATE OR REPLACE FUNCTION onceward_require_schema_2_v1() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT
BEGIN ATOMIC
    UPDATE platform_idempotency_meta SET schema_version = 2, readable_from = 2 WHERE readable_from < 2;
END;

-- One write of a batch: a begin, a move, an append or a mark. Fields that a verb does not use are NULL.
CREATE TYPE onceward_write_v7 AS (
    n           integer,           -- its place in the batch
    verb        text,              -- begin, append, mark, or a move (renew settle fail not_done release doubt abandon
                                   -- abandon_dead uphold overturn forget); or read, which every entry refuses, so
                                   -- that the result shows the entry
    scope       text COLLATE "C",
    key         text COLLATE "C",
    write_id    text,
    version     bigint,            -- the version it names; for a begin: the one whose holder was proved dead, or 0
    lease       bigint,            -- microseconds
    retain      bigint,            -- microseconds
    fingerprint text,
    holder      text,
    repeatable  boolean,
    user_id     text,
    endpoint    text,
    note        text,
    code        integer,
    headers     text,
    chunks      integer,           -- of an append: the number of chunks before it; of a mark: its number
    parts       integer[],         -- positions of its bytes in the batch's data: a body has one part, an append many
    known       text,              -- the last write of the entry that its caller knows; NULL: none
    refuse      bigint,            -- of a settle or uphold: microseconds after the retention; -1: never expires
    basis       integer            -- of a begin: not_done_count of a new entry
);

-- The guard: whether core/claim.py would apply this write to this entry. NULL if the entry does not exist.
CREATE FUNCTION onceward_allows_v7(e platform_idempotency_keys, w onceward_write_v7, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN w.verb = 'begin' THEN
        e.status IN ('completed', 'failed') AND e.expires_at <= moment
            AND (e.refuse_until IS NULL OR e.refuse_until <= moment)
        OR e.fingerprint = w.fingerprint AND (
            e.status = 'failed'
            OR e.status = 'in_progress' AND (e.lease_until <= moment OR e.version = w.version))
    -- The other verbs, except forget, accept only unfinished entries, and those are never absent.
    WHEN e.version <> w.version THEN false
    WHEN w.verb = 'settle' THEN e.status IN ('in_progress', 'in_doubt')
    WHEN w.verb IN ('renew', 'fail', 'not_done', 'release', 'doubt', 'abandon_dead') THEN e.status = 'in_progress'
    WHEN w.verb = 'abandon' THEN e.status = 'in_progress' AND e.lease_until <= moment
    WHEN w.verb IN ('uphold', 'overturn') THEN e.status = 'in_doubt'
    WHEN w.verb = 'forget' THEN e.status = 'completed'
        AND (e.expires_at IS NULL OR e.expires_at > moment OR coalesce(e.refuse_until > moment, false))
    WHEN w.verb = 'append' THEN e.status = 'in_progress' AND e.response_chunks = w.chunks
    WHEN w.verb = 'mark' THEN e.status IN ('in_progress', 'in_doubt') AND coalesce(e.recovery_seq, 0) < w.chunks
    ELSE false
END;

-- Entry.absent of core/claim.py: finished, its retention is over, and its key is not refused.
CREATE OR REPLACE FUNCTION onceward_absent_v2(e platform_idempotency_keys, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN e.status IN ('completed', 'failed') AND e.expires_at <= moment
    AND (e.refuse_until IS NULL OR e.refuse_until <= moment);

-- Entry.abandoned of core/claim.py: the next begin treats it as a claim in progress.
CREATE OR REPLACE FUNCTION onceward_abandoned_v1(e platform_idempotency_keys) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN e.status = 'failed' AND e.completed_at IS NULL;

CREATE FUNCTION onceward_ends_v7(verb text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN verb IN ('settle', 'fail', 'not_done', 'release', 'uphold', 'overturn', 'forget');

-- A page of entries in key order. Planned again for each call, so that unset filters cost nothing and set filters use
-- their index.
CREATE OR REPLACE FUNCTION onceward_scan_v3(
    p_scope text, p_status text, p_after_scope text, p_after_key text, p_limit integer)
RETURNS TABLE (
    scope text, key text,
    fingerprint text, status varchar, version bigint, attempt integer, write_id text, holder text, repeatable boolean,
    lease_until bigint, expires_at bigint, created_at bigint, completed_at bigint, user_id varchar, endpoint varchar,
    note text, response_status integer, response_headers text, response_body bytea, response_chunks integer,
    claimed_at bigint, recovery_point bytea, recovery_seq integer, refuse_until bigint, not_done_count integer)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.scope, e.key,
           e.fingerprint, e.status, e.version, e.attempt, e.write_id, e.holder, e.repeatable,
           onceward_microseconds_v1(e.lease_until), onceward_microseconds_v1(e.expires_at),
           onceward_microseconds_v1(e.created_at), onceward_microseconds_v1(e.completed_at),
           e.user_id, e.endpoint, e.note, e.response_status, e.response_headers, e.response_body, e.response_chunks,
           onceward_microseconds_v1(e.claimed_at), e.recovery_point, e.recovery_seq,
           onceward_microseconds_v1(e.refuse_until), e.not_done_count
    FROM platform_idempotency_keys e
    WHERE (e.scope, e.key) > (p_after_scope, p_after_key)
      AND (p_scope IS NULL OR e.scope = p_scope)
      AND (p_status IS NULL OR e.status = p_status)
    ORDER BY e.scope, e.key
    LIMIT p_limit;
END
$$;

-- Claims that go in doubt: they are not repeatable and their lease has lapsed. The oldest lease comes first.
CREATE OR REPLACE FUNCTION onceward_lapsed_v2(p_now bigint, p_limit integer)
RETURNS TABLE (
    scope text, key text,
    fingerprint text, status varchar, version bigint, attempt integer, write_id text, holder text, repeatable boolean,
    lease_until bigint, expires_at bigint, created_at bigint, completed_at bigint, user_id varchar, endpoint varchar,
    note text, response_status integer, response_headers text, response_body bytea, response_chunks integer,
    claimed_at bigint, recovery_point bytea, recovery_seq integer, refuse_until bigint, not_done_count integer)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT e.scope, e.key,
           e.fingerprint, e.status, e.version, e.attempt, e.write_id, e.holder, e.repeatable,
           onceward_microseconds_v1(e.lease_until), onceward_microseconds_v1(e.expires_at),
           onceward_microseconds_v1(e.created_at), onceward_microseconds_v1(e.completed_at),
           e.user_id, e.endpoint, e.note, e.response_status, e.response_headers, e.response_body, e.response_chunks,
           onceward_microseconds_v1(e.claimed_at), e.recovery_point, e.recovery_seq,
           onceward_microseconds_v1(e.refuse_until), e.not_done_count
    FROM platform_idempotency_keys e
    WHERE e.status = 'in_progress' AND NOT e.repeatable
      AND e.lease_until <= coalesce(onceward_time_v1(p_now), clock_timestamp())
    ORDER BY e.lease_until
    LIMIT p_limit;
END;

-- Decide a batch, at READ COMMITTED, where each statement below sees everything that was committed when it began.
--
-- Nothing here can deadlock. A session waits only in step 1. At that time it holds the shared lock and rows that it
-- inserted itself, in key order. It can wait for two things. First, for the shared lock, while a purge has it (a purge
-- that has the lock never waits) or is queued for it (behind batches that are past that point). Second, for a key that
-- another session inserted and has not committed. If that session is also in step 1, it can only wait at a greater key;
-- in step 2, and in a purge, it waits for nothing. So no chain of waiting sessions is a cycle. A caller's bound
-- transaction can also make a session wait, if it changed a row that did not exist when step 0 read it. It never waits
-- for this session, and lock_timeout limits the wait.
--
-- Entries are found by LATERAL subqueries that the planner cannot merge into a join (OFFSET 0, or a lock). So each lookup
-- goes through the primary key. As a join, on a table that was nearly empty when it was last analyzed, the planner reads
-- all entries for each batch, and the session keeps that plan while the table grows. The settings of the function
-- exclude the other such plans, for all statements in it and on every connection, also that of a bound transaction.
--
-- p_known has the moves that finish an entry which their caller has in its claim cache; p_other has all other writes.
-- Either may be NULL.
--
-- Results omit what the caller already knows. For a new entry, the version is enough. For a known entry that was
-- finished, its earlier status is enough. The first row has all of these, and -1 as its place: `note` has the place and
-- the version of each inserted begin, and `before` has the place and the earlier status of each finished entry. A begin
-- that found an expired entry, which was purged before it could be locked, has no row at all: the key is free, and the
-- caller sends the write again.
CREATE FUNCTION onceward_commit_v7(
    p_now bigint, p_known onceward_write_v7[], p_other onceward_write_v7[], p_data bytea)
RETURNS TABLE (
    n integer, applied boolean, before varchar, locked boolean, now bigint,
    fingerprint text, status varchar, version bigint, attempt integer, write_id text, holder text, repeatable boolean,
    lease_until bigint, expires_at bigint, created_at bigint, completed_at bigint, user_id varchar, endpoint varchar,
    note text, response_status integer, response_headers text, response_body bytea, response_chunks integer,
    claimed_at bigint, recovery_point bytea, recovery_seq integer, refuse_until bigint, not_done_count integer)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_tidscan = on
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment   constant timestamptz := coalesce(onceward_time_v1(p_now), clock_timestamp());
    now_us   constant bigint := onceward_microseconds_v1(moment);
    micro    constant interval := interval '1 microsecond';
    -- Writes that their entries may allow: those that finish an entry, and others.
    ending   onceward_write_v7[];
    changing onceward_write_v7[];
    -- Places of writes:
    fresh    integer[];   -- begins of keys that have no row
    answered integer[];   -- writes whose whole result is in the first row
    held     integer[];   -- other applied writes, and the earlier status of their entries
    befores  varchar[];
    done     integer[];   -- writes that one statement applied
    caught   integer[];   -- writes that were locked to change an unfinished entry, their earlier status, and their row
    priors   varchar[];
    places   tid[];
    taken    integer[];   -- the same writes, by what they do
    doubted  integer[];
    failed   integer[];
    renewed  integer[];
    appended integer[];
    marked   integer[];
    inserted bigint[];    -- versions
    -- The contents of the first row.
    begun    text;
    ended    text;
    is_free  boolean;
BEGIN
    -- Step 0: read without locks. Writes that are refused here go straight to step 3. Entries that a caller has in its
    -- cache are not read, because they are nearly always unchanged.
    IF p_other IS NOT NULL THEN
        SELECT array_agg(w.n) FILTER (WHERE e.is_there IS NULL AND w.verb = 'begin'),
               array_agg(w) FILTER (WHERE onceward_ends_v7(w.verb) AND e.allows),
               array_agg(w) FILTER (WHERE NOT onceward_ends_v7(w.verb) AND e.allows)
        INTO fresh, ending, changing
        FROM unnest(p_other) w LEFT JOIN LATERAL (
            SELECT true AS is_there, onceward_allows_v7(k, w, moment) AS allows FROM platform_idempotency_keys k
            WHERE k.scope = w.scope AND k.key = w.key OFFSET 0
        ) e ON true;
    END IF;
    ending := p_known || ending;

    -- Step 1: insert absent keys. A new version must be greater than any that this key ever had. Between nextval and
    -- the insert, others could insert, settle and purge the same key. The shared lock keeps purge out in between, which
    -- is the only function that deletes.
    IF fresh IS NOT NULL THEN
        is_free := pg_advisory_xact_lock_shared(1869505381, 2) IS NOT NULL;
        WITH wanted AS MATERIALIZED (
            SELECT w.*, nextval('platform_idempotency_versions') AS minted FROM unnest(p_other) w WHERE w.n = ANY (fresh)
        ), made AS (
            INSERT INTO platform_idempotency_keys AS e (
                scope, key, user_id, endpoint, status, created_at, claimed_at, fingerprint, version, attempt, write_id,
                holder, repeatable, lease_until, expires_at, not_done_count)
            SELECT w.scope, w.key, w.user_id, w.endpoint, 'in_progress', moment, moment, w.fingerprint, w.minted, 1,
                   w.write_id, w.holder, w.repeatable, moment + w.lease * micro,
                   CASE WHEN w.repeatable THEN moment + (w.lease + w.retain) * micro END, w.basis
            FROM wanted w
            ORDER BY w.scope, w.key
            ON CONFLICT DO NOTHING
            RETURNING e.version
        )
        SELECT string_agg(w.n || ' ' || w.minted, ' '), (SELECT array_agg(m.version) FROM made m) INTO begun, inserted
        FROM wanted w;
        IF cardinality(inserted) IS DISTINCT FROM cardinality(fresh) THEN
            -- Other sessions inserted some of the keys first.
            SELECT string_agg(w.n || ' ' || e.version, ' '), array_agg(w.n) INTO begun, fresh
            FROM unnest(p_other) w CROSS JOIN LATERAL (
                SELECT k.version FROM platform_idempotency_keys k WHERE k.scope = w.scope AND k.key = w.key OFFSET 0
            ) e
            WHERE w.n = ANY (fresh) AND e.version = ANY (inserted);
        END IF;
        answered := fresh;
    END IF;

    -- Step 2: lock the rows whose guard holds and change them. SKIP LOCKED: skip rows that another transaction has
    -- locked. A row that was changed since step 0 is checked again under its lock. The writes that finish an entry come
    -- first, in one statement. It does not see a row that was changed after the statement began and before the row was
    -- locked, so it runs a second time for those.
    FOR pass IN 1 .. 2 LOOP
        EXIT WHEN ending IS NULL;
        WITH held AS MATERIALIZED (
            SELECT e.*, w.*
            FROM unnest(ending) w CROSS JOIN LATERAL (
                SELECT k.ctid AS place, k.status AS before, coalesce(k.write_id = w.known, false) AS is_known
                FROM platform_idempotency_keys k
                WHERE k.scope = w.scope AND k.key = w.key AND onceward_allows_v7(k, w, moment)
                FOR NO KEY UPDATE SKIP LOCKED
            ) e
        ), changed AS (
            UPDATE platform_idempotency_keys e
            SET status = CASE WHEN h.verb IN ('settle', 'uphold') THEN 'completed' ELSE 'failed' END,
                write_id = h.write_id, completed_at = moment,
                expires_at = CASE WHEN h.refuse = -1 AND h.verb IN ('settle', 'uphold') THEN NULL
                                  ELSE moment + h.retain * micro END,
                refuse_until = CASE WHEN h.refuse IS NOT NULL AND h.verb IN ('settle', 'uphold')
                                    THEN moment + (h.retain + greatest(h.refuse, 0)) * micro END,
                recovery_point = CASE WHEN h.verb <> 'overturn' THEN e.recovery_point END,
                recovery_seq = CASE WHEN h.verb <> 'overturn' THEN e.recovery_seq END,
                not_done_count = CASE WHEN h.verb IN ('not_done', 'overturn') THEN coalesce(e.not_done_count, 0) + 1
                                      ELSE e.not_done_count END,
                note = h.note, response_status = h.code, response_headers = h.headers,
                response_chunks = h.chunks,
                response_body = substring(p_data FROM h.parts[1] + 1 FOR h.parts[2] - h.parts[1])
            FROM held h WHERE e.ctid = h.place
            RETURNING h.n, h.before, h.is_known
        )
        SELECT nullif(concat_ws(' ', ended, string_agg(c.n || ' ' || c.before, ' ') FILTER (WHERE c.is_known)), ''),
               answered || array_agg(c.n) FILTER (WHERE c.is_known),
               held || array_agg(c.n) FILTER (WHERE NOT c.is_known),
               befores || array_agg(c.before) FILTER (WHERE NOT c.is_known),
               array_agg(c.n)
        INTO ended, answered, held, befores, done
        FROM changed c;
        EXIT WHEN cardinality(done) = cardinality(ending);
        ending := (SELECT array_agg(w) FROM unnest(ending) w WHERE done IS NULL OR w.n <> ALL (done));
    END LOOP;

    -- Then lock the rows of all other writes.
    IF changing IS NOT NULL THEN
        SELECT array_agg(h.n), array_agg(h.before), array_agg(h.place),
               array_agg(h.n) FILTER (WHERE h.verb = 'begin' AND NOT h.doubtful),
               array_agg(h.n) FILTER (
                   WHERE h.verb = 'doubt' OR h.verb IN ('begin', 'abandon', 'abandon_dead') AND h.doubtful),
               array_agg(h.n) FILTER (WHERE h.verb IN ('abandon', 'abandon_dead') AND NOT h.doubtful),
               array_agg(h.n) FILTER (WHERE h.verb = 'renew'),
               array_agg(h.n) FILTER (WHERE h.verb = 'append'),
               array_agg(h.n) FILTER (WHERE h.verb = 'mark')
        INTO caught, priors, places, taken, doubted, failed, renewed, appended, marked
        FROM (
            SELECT w.n, w.verb, e.place, e.before, e.doubtful
            FROM unnest(changing) w CROSS JOIN LATERAL (
                SELECT k.ctid AS place,
                       CASE WHEN onceward_absent_v2(k, moment) THEN NULL
                            WHEN onceward_abandoned_v1(k) THEN 'in_progress' ELSE k.status END AS before,
                       (k.status = 'in_progress' OR onceward_abandoned_v1(k) AND NOT onceward_absent_v2(k, moment))
                       AND NOT (k.repeatable AND coalesce(w.repeatable, true)) AS doubtful
                FROM platform_idempotency_keys k
                WHERE k.scope = w.scope AND k.key = w.key AND onceward_allows_v7(k, w, moment)
                FOR NO KEY UPDATE SKIP LOCKED
            ) e
        ) h;
        held := held || caught;
        befores := befores || priors;
    END IF;

    -- A begin over an expired, failed or lapsed entry: a new claim in the old row. An expired entry leaves nothing
    -- behind.
    IF taken IS NOT NULL THEN
        DELETE FROM platform_idempotency_chunks c USING unnest(changing) w CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM platform_idempotency_chunks k
            WHERE k.scope = w.scope AND k.key = w.key OFFSET 0
        ) d
        WHERE w.n = ANY (taken) AND c.ctid = d.place;
        UPDATE platform_idempotency_keys e
        SET user_id = w.user_id, endpoint = w.endpoint, status = 'in_progress', response_status = NULL,
            response_headers = NULL, response_body = NULL, response_chunks = 0, completed_at = NULL,
            fingerprint = w.fingerprint, version = nextval('platform_idempotency_versions'),
            attempt = CASE WHEN onceward_absent_v2(e, moment) THEN 1 ELSE e.attempt + 1 END,
            created_at = CASE WHEN onceward_absent_v2(e, moment) THEN moment ELSE e.created_at END,
            note = CASE WHEN onceward_absent_v2(e, moment) THEN '' ELSE e.note END,
            recovery_point = CASE WHEN NOT onceward_absent_v2(e, moment) THEN e.recovery_point END,
            recovery_seq = CASE WHEN NOT onceward_absent_v2(e, moment) THEN e.recovery_seq END,
            refuse_until = NULL,
            not_done_count = CASE WHEN onceward_absent_v2(e, moment) THEN w.basis ELSE e.not_done_count END,
            claimed_at = moment, write_id = w.write_id, holder = w.holder, repeatable = w.repeatable,
            lease_until = moment + w.lease * micro,
            expires_at = CASE WHEN w.repeatable THEN moment + (w.lease + w.retain) * micro END
        FROM unnest(changing) w WHERE w.n = ANY (taken) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    -- A lapsed claim that is not repeatable, or a holder that gives up. A begin has no note, and an abandon may have
    -- none; then the entry keeps its note.
    IF doubted IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET status = 'in_doubt', write_id = w.write_id, expires_at = NULL,
            note = CASE WHEN w.verb = 'doubt' THEN w.note ELSE coalesce(nullif(w.note, ''), e.note) END
        FROM unnest(changing) w WHERE w.n = ANY (doubted) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    -- An abandoned claim that is repeatable.
    IF failed IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET status = 'failed', write_id = w.write_id, expires_at = moment + w.retain * micro,
            note = coalesce(nullif(w.note, ''), e.note), response_chunks = 0
        FROM unnest(changing) w WHERE w.n = ANY (failed) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    IF renewed IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET write_id = w.write_id, lease_until = moment + w.lease * micro,
            expires_at = CASE WHEN e.repeatable THEN moment + (w.lease + w.retain) * micro END
        FROM unnest(changing) w WHERE w.n = ANY (renewed) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    IF appended IS NOT NULL THEN
        INSERT INTO platform_idempotency_chunks (scope, key, seq, data)
        SELECT w.scope, w.key, w.chunks + i,
               substring(p_data FROM w.parts[i] + 1 FOR w.parts[i + 1] - w.parts[i])
        FROM unnest(changing) w, generate_series(1, cardinality(w.parts) - 1) i
        WHERE w.n = ANY (appended);
        UPDATE platform_idempotency_keys e
        SET write_id = w.write_id, response_chunks = w.chunks + greatest(cardinality(w.parts) - 1, 0)
        FROM unnest(changing) w WHERE w.n = ANY (appended) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    -- In doubt, the write that put the entry in doubt must still recognise itself.
    IF marked IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET write_id = CASE WHEN e.status = 'in_progress' THEN w.write_id ELSE e.write_id END, recovery_seq = w.chunks,
            recovery_point = substring(p_data FROM w.parts[1] + 1 FOR w.parts[2] - w.parts[1])
        FROM unnest(changing) w WHERE w.n = ANY (marked) AND e.ctid = places[array_position(caught, w.n)];
    END IF;

    -- Step 3: return the results.
    IF answered IS NOT NULL THEN
        n := -1;
        now := now_us;
        note := begun;
        before := ended;
        RETURN NEXT;
    END IF;
    -- Read the entries of all other writes again for their results. If an entry allows a write that was not applied,
    -- another transaction had locked the row. An applied body is not sent back to its sender.
    IF coalesce(cardinality(answered), 0) < coalesce(cardinality(p_known), 0) + coalesce(cardinality(p_other), 0) THEN
        RETURN QUERY
        SELECT w.n, a.applied, befores[array_position(held, w.n)], NOT a.applied AND e.allows,
               now_us, e.fingerprint, e.status, e.version, e.attempt, e.write_id, e.holder, e.repeatable,
               onceward_microseconds_v1(e.lease_until), onceward_microseconds_v1(e.expires_at),
               onceward_microseconds_v1(e.created_at), onceward_microseconds_v1(e.completed_at),
               e.user_id, e.endpoint, e.note, e.response_status, e.response_headers,
               CASE WHEN NOT a.applied THEN e.response_body END, e.response_chunks,
               onceward_microseconds_v1(e.claimed_at), e.recovery_point, e.recovery_seq,
               onceward_microseconds_v1(e.refuse_until), e.not_done_count
        FROM unnest(p_known || p_other) w
        LEFT JOIN LATERAL (
            SELECT k.*, onceward_allows_v7(k, w, moment) AS allows FROM platform_idempotency_keys k
            WHERE k.scope = w.scope AND k.key = w.key OFFSET 0
        ) e ON true
        CROSS JOIN LATERAL (SELECT coalesce(w.n = ANY (held), false) AS applied) a
        WHERE (answered IS NULL OR w.n <> ALL (answered)) AND (e.key IS NOT NULL OR w.verb <> 'begin');
    END IF;
END
$$;

-- Delete entries whose retention is over. Only this function deletes entries, and only while no batch inserts any
-- (step 1 of onceward_commit). Entries that refuse their key, or never expire, stay without their results
-- (Entry.without_result of core/entry.py).
CREATE OR REPLACE FUNCTION onceward_purge_v3(p_now bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_tidscan = on
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    moment constant timestamptz := coalesce(onceward_time_v1(p_now), clock_timestamp());
    places tid[];
    scopes text[];
    keys   text[];
    stay   boolean[];
BEGIN
    -- With nothing to do, take no lock.
    IF NOT EXISTS (SELECT FROM platform_idempotency_keys e WHERE e.expires_at <= moment)
        AND NOT EXISTS (SELECT FROM platform_idempotency_keys e WHERE e.expires_at IS NULL AND e.refuse_until <= moment)
    THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(1869505381, 2);
    SELECT array_agg(d.ctid), array_agg(d.scope), array_agg(d.key), array_agg(d.stays) INTO places, scopes, keys, stay
    FROM (
        SELECT e.ctid, e.scope, e.key, coalesce(e.refuse_until > moment, false) AS stays FROM platform_idempotency_keys e
        WHERE e.expires_at <= moment ORDER BY e.expires_at LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) d;
    IF coalesce(cardinality(scopes), 0) < p_limit THEN
        SELECT places || array_agg(d.ctid), scopes || array_agg(d.scope), keys || array_agg(d.key),
               stay || array_agg(true)
        INTO places, scopes, keys, stay
        FROM (
            SELECT e.ctid, e.scope, e.key FROM platform_idempotency_keys e
            WHERE e.expires_at IS NULL AND e.refuse_until <= moment
            ORDER BY e.refuse_until LIMIT p_limit - coalesce(cardinality(scopes), 0)
            FOR UPDATE SKIP LOCKED
        ) d;
    END IF;
    -- Each statement sees the rows as they are under these locks, and every chunk that was appended before.
    DELETE FROM platform_idempotency_chunks c USING unnest(scopes, keys) d(scope, key) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM platform_idempotency_chunks k WHERE k.scope = d.scope AND k.key = d.key OFFSET 0
    ) f
    WHERE c.ctid = f.place;
    UPDATE platform_idempotency_keys e
    SET response_status = NULL, response_headers = NULL, response_body = NULL, response_chunks = 0,
        recovery_point = NULL, recovery_seq = NULL,
        expires_at = CASE WHEN e.expires_at IS NOT NULL THEN e.refuse_until END,
        refuse_until = CASE WHEN e.expires_at IS NOT NULL THEN e.refuse_until END
    FROM unnest(places, stay) d(place, stays) WHERE d.stays AND e.ctid = d.place;
    DELETE FROM platform_idempotency_keys e USING unnest(places, stay) d(place, stays)
    WHERE NOT d.stays AND e.ctid = d.place;
    RETURN coalesce(cardinality(scopes), 0);
END
$$;
