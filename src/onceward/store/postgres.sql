-- The ledger on PostgreSQL: its tables, and the functions that decide a whole batch in one round trip.
-- The seed's columns come first; what the claim needs follows. Runs once, in one transaction, under a lock.

CREATE TABLE platform_idempotency_keys (
    scope            text COLLATE "C" NOT NULL,  -- namespace, layer and principal; "C": byte order, as everywhere
    key              text COLLATE "C" NOT NULL,
    user_id          varchar(255) NOT NULL,
    endpoint         varchar(255) NOT NULL,
    status           varchar(20)  NOT NULL DEFAULT 'in_progress'
                     CHECK (status IN ('in_progress', 'completed', 'failed', 'in_doubt')),
    response_status  integer,
    response_headers text,
    response_body    bytea,                      -- NULL with response_chunks = 0: it happened, its result was not kept
    response_chunks  integer      NOT NULL DEFAULT 0,
    created_at       timestamptz  NOT NULL DEFAULT now(),
    completed_at     timestamptz,
    fingerprint      text         NOT NULL,
    version          bigint       NOT NULL,      -- the fencing token
    attempt          integer      NOT NULL,
    write_id         text         NOT NULL,      -- of the last write, so that a repeated write knows itself
    holder           text         NOT NULL,
    repeatable       boolean      NOT NULL,
    lease_until      timestamptz  NOT NULL,
    expires_at       timestamptz,                -- when purge may take it; NULL: never
    note             text         NOT NULL DEFAULT '',
    PRIMARY KEY (scope, key)
);

CREATE INDEX idx_idempotency_keys_created ON platform_idempotency_keys (created_at);
CREATE INDEX idx_idempotency_keys_user ON platform_idempotency_keys (user_id);
CREATE INDEX idx_idempotency_keys_expires ON platform_idempotency_keys (expires_at) WHERE expires_at IS NOT NULL;
-- Operators ask for what is unfinished; an index of those alone stays small.
CREATE INDEX idx_idempotency_keys_open ON platform_idempotency_keys (status, scope, key)
    WHERE status IN ('in_progress', 'in_doubt');

CREATE TABLE platform_idempotency_chunks (
    scope text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    seq   integer NOT NULL,
    data  bytea   NOT NULL,
    PRIMARY KEY (scope, key, seq)
);

-- Written once, seldom read and gone after a day: compressing these would cost more than it saves.
ALTER TABLE platform_idempotency_keys ALTER COLUMN response_body SET STORAGE EXTERNAL;
ALTER TABLE platform_idempotency_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

-- Versions outlive every entry. No cache: a session that kept numbers back would hand out old ones later.
CREATE SEQUENCE platform_idempotency_versions AS bigint CACHE 1;

CREATE TABLE platform_idempotency_meta (
    one            integer PRIMARY KEY CHECK (one = 1),  -- one row
    schema_version integer NOT NULL
);

-- One write of a batch: a begin, a move or an append; what a verb does not use is NULL.
CREATE TYPE onceward_write_v1 AS (
    n           integer,           -- its place in the batch
    verb        text,              -- begin, append, or a move (renew settle fail release doubt uphold overturn);
                                   -- read, which every entry refuses, so that the answer shows it
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
    chunks      integer,           -- of an append: how many there are before it
    parts       integer[]          -- where its bytes begin in the batch's data: a body has one part, an append many
);

-- Times cross the wire as whole microseconds since 1970. A double holds those exactly until the year 2255.
CREATE FUNCTION onceward_time_v1(microseconds bigint) RETURNS timestamptz
LANGUAGE sql STABLE RETURN timestamptz 'epoch' + microseconds * interval '1 microsecond';

CREATE FUNCTION onceward_microseconds_v1(moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE RETURN (extract(epoch FROM moment) * 1000000)::bigint;

-- Entry.absent of core/claim.py: finished, and its retention is over.
CREATE FUNCTION onceward_absent_v1(e platform_idempotency_keys, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN e.status IN ('completed', 'failed') AND e.expires_at <= moment;

-- The guard: whether core/claim.py would apply this write to this entry. NULL when there is no entry.
CREATE FUNCTION onceward_allows_v1(e platform_idempotency_keys, w onceward_write_v1, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN CASE
    WHEN w.verb = 'begin' THEN
        e.status IN ('completed', 'failed') AND e.expires_at <= moment
        OR e.fingerprint = w.fingerprint AND (
            e.status = 'failed'
            OR e.status = 'in_progress' AND (e.lease_until <= moment OR e.version = w.version))
    -- The other verbs accept unfinished entries only, and those are never absent.
    WHEN e.version <> w.version THEN false
    WHEN w.verb = 'settle' THEN e.status IN ('in_progress', 'in_doubt')
    WHEN w.verb IN ('renew', 'fail', 'release', 'doubt') THEN e.status = 'in_progress'
    WHEN w.verb IN ('uphold', 'overturn') THEN e.status = 'in_doubt'
    WHEN w.verb = 'append' THEN e.status = 'in_progress' AND e.response_chunks = w.chunks
    ELSE false
END;

-- Decide a batch, at READ COMMITTED, where each statement below sees what was committed when it began.
--
-- Nothing here can deadlock. A session waits only in step 1, and what it holds then is the shared lock and rows that
-- it inserted itself, in order. It waits for the shared lock while a purge has it (a purge never waits once it has it)
-- or is queued for it (behind batches that are past that point); or at a key that another session inserted and has not
-- committed: one that is itself in step 1 waits at a greater key if at all, and one in step 2 or a purge waits for
-- nobody. So following who waits for whom always ends. A caller's bound transaction may make it wait too, if that
-- changed a row which did not exist when step 0 looked; it never waits for us in turn, and lock_timeout ends it.
CREATE FUNCTION onceward_commit_v1(p_now bigint, p_writes text, p_data bytea)
RETURNS TABLE (
    n integer, applied boolean, before varchar, locked boolean, now bigint,
    fingerprint text, status varchar, version bigint, attempt integer, write_id text, holder text, repeatable boolean,
    lease_until bigint, expires_at bigint, created_at bigint, completed_at bigint, user_id varchar, endpoint varchar,
    note text, response_status integer, response_headers text, response_body bytea, response_chunks integer)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    moment   constant timestamptz := coalesce(onceward_time_v1(p_now), clock_timestamp());
    told     constant bigint := onceward_microseconds_v1(moment);
    micro    constant interval := interval '1 microsecond';
    batch    constant onceward_write_v1[] :=
                 ARRAY(SELECT w FROM json_populate_recordset(NULL::onceward_write_v1, p_writes::json) w);
    fresh    onceward_write_v1[];   -- begins of keys that are not there
    likely   onceward_write_v1[];   -- writes whose entry seems to allow them
    taken    onceward_write_v1[];   -- what is to be done to the rows we hold
    doubted  onceward_write_v1[];
    renewed  onceward_write_v1[];
    appended onceward_write_v1[];
    finished onceward_write_v1[];
    minted   bigint[];              -- the versions of the rows we inserted
    held     integer[];             -- the writes whose rows we hold, and what those rows were before
    befores  varchar[];
BEGIN
    -- Step 0: look, without locks. A batch that is refused here goes straight to step 3.
    SELECT array_agg(w) FILTER (WHERE e.key IS NULL AND w.verb = 'begin'),
           array_agg(w) FILTER (WHERE onceward_allows_v1(e, w, moment))
    INTO fresh, likely
    FROM unnest(batch) w LEFT JOIN platform_idempotency_keys e ON e.scope = w.scope AND e.key = w.key;

    -- Step 1: insert absent keys. A version minted here must be greater than any that this key ever had. The key
    -- could be inserted, settled and purged by others between our nextval and our insert; so we keep purge, the only
    -- one who deletes, out in between.
    IF fresh IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(1869505381, 2);
        WITH inserted AS (
            INSERT INTO platform_idempotency_keys AS e (
                scope, key, user_id, endpoint, status, created_at, fingerprint, version, attempt, write_id, holder,
                repeatable, lease_until, expires_at)
            SELECT w.scope, w.key, w.user_id, w.endpoint, 'in_progress', moment, w.fingerprint,
                   nextval('platform_idempotency_versions'), 1, w.write_id, w.holder,
                   w.repeatable, moment + w.lease * micro,
                   CASE WHEN w.repeatable THEN moment + (w.lease + w.retain) * micro END
            FROM unnest(fresh) w
            ORDER BY w.scope, w.key
            ON CONFLICT DO NOTHING
            RETURNING e.version
        )
        SELECT array_agg(i.version) INTO minted FROM inserted i;
    END IF;

    -- Step 2: lock the rows whose guard holds, those at least that nobody else has locked, and change them. A row that
    -- was changed since step 0 is judged again as it is now, under its lock.
    IF likely IS NOT NULL THEN
        SELECT array_agg(h.n), array_agg(h.before),
               array_agg(h.w) FILTER (WHERE h.verb = 'begin' AND NOT h.doubtful),
               array_agg(h.w) FILTER (WHERE h.verb = 'begin' AND h.doubtful OR h.verb = 'doubt'),
               array_agg(h.w) FILTER (WHERE h.verb = 'renew'),
               array_agg(h.w) FILTER (WHERE h.verb = 'append'),
               array_agg(h.w) FILTER (WHERE h.verb IN ('settle', 'fail', 'release', 'uphold', 'overturn'))
        INTO held, befores, taken, doubted, renewed, appended, finished
        FROM (
            SELECT w, w.n, w.verb,
                   CASE WHEN NOT coalesce(onceward_absent_v1(e, moment), false) THEN e.status END AS before,
                   e.status = 'in_progress' AND NOT (e.repeatable AND w.repeatable) AS doubtful
            FROM unnest(likely) w JOIN platform_idempotency_keys e ON e.scope = w.scope AND e.key = w.key
            WHERE onceward_allows_v1(e, w, moment)
            ORDER BY e.scope, e.key
            FOR NO KEY UPDATE OF e SKIP LOCKED
        ) h;
    END IF;

    -- A begin over an expired, failed or lapsed entry: a new claim in the old row. What has expired leaves no trace.
    IF taken IS NOT NULL THEN
        DELETE FROM platform_idempotency_chunks c USING unnest(taken) w WHERE c.scope = w.scope AND c.key = w.key;
        UPDATE platform_idempotency_keys e
        SET user_id = w.user_id, endpoint = w.endpoint, status = 'in_progress', response_status = NULL,
            response_headers = NULL, response_body = NULL, response_chunks = 0, completed_at = NULL,
            fingerprint = w.fingerprint, version = nextval('platform_idempotency_versions'),
            attempt = CASE WHEN onceward_absent_v1(e, moment) THEN 1 ELSE e.attempt + 1 END,
            created_at = CASE WHEN onceward_absent_v1(e, moment) THEN moment ELSE e.created_at END,
            note = CASE WHEN onceward_absent_v1(e, moment) THEN '' ELSE e.note END,
            write_id = w.write_id, holder = w.holder, repeatable = w.repeatable,
            lease_until = moment + w.lease * micro,
            expires_at = CASE WHEN w.repeatable THEN moment + (w.lease + w.retain) * micro END
        FROM unnest(taken) w WHERE e.scope = w.scope AND e.key = w.key;
    END IF;

    -- A lapsed claim that may not be repeated, or a holder that gives up; a begin has no note of its own.
    IF doubted IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET status = 'in_doubt', write_id = w.write_id, expires_at = NULL, note = coalesce(w.note, e.note)
        FROM unnest(doubted) w WHERE e.scope = w.scope AND e.key = w.key;
    END IF;

    IF renewed IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET write_id = w.write_id, lease_until = moment + w.lease * micro,
            expires_at = CASE WHEN e.repeatable THEN moment + (w.lease + w.retain) * micro END
        FROM unnest(renewed) w WHERE e.scope = w.scope AND e.key = w.key;
    END IF;

    IF appended IS NOT NULL THEN
        INSERT INTO platform_idempotency_chunks (scope, key, seq, data)
        SELECT w.scope, w.key, w.chunks + i,
               substring(p_data FROM w.parts[i] + 1 FOR w.parts[i + 1] - w.parts[i])
        FROM unnest(appended) w, generate_series(1, cardinality(w.parts) - 1) i;
        UPDATE platform_idempotency_keys e
        SET write_id = w.write_id, response_chunks = w.chunks + greatest(cardinality(w.parts) - 1, 0)
        FROM unnest(appended) w WHERE e.scope = w.scope AND e.key = w.key;
    END IF;

    IF finished IS NOT NULL THEN
        UPDATE platform_idempotency_keys e
        SET status = CASE WHEN w.verb IN ('settle', 'uphold') THEN 'completed' ELSE 'failed' END,
            write_id = w.write_id, expires_at = moment + w.retain * micro, completed_at = moment, note = w.note,
            response_status = w.code, response_headers = w.headers, response_chunks = w.chunks,
            response_body = substring(p_data FROM w.parts[1] + 1 FOR w.parts[2] - w.parts[1])
        FROM unnest(finished) w WHERE e.scope = w.scope AND e.key = w.key;
    END IF;

    -- Step 3: look at every key afresh and answer from that. A write that its entry allows and that was not applied
    -- met someone else's lock. An applied body is not sent back to the one who sent it.
    RETURN QUERY
    SELECT w.n, a.applied, befores[array_position(held, w.n)], NOT a.applied AND onceward_allows_v1(e, w, moment),
           told, e.fingerprint, e.status, e.version, e.attempt, e.write_id, e.holder, e.repeatable,
           onceward_microseconds_v1(e.lease_until), onceward_microseconds_v1(e.expires_at),
           onceward_microseconds_v1(e.created_at), onceward_microseconds_v1(e.completed_at),
           e.user_id, e.endpoint, e.note, e.response_status, e.response_headers,
           CASE WHEN NOT a.applied THEN e.response_body END, e.response_chunks
    FROM unnest(batch) w
    LEFT JOIN platform_idempotency_keys e ON e.scope = w.scope AND e.key = w.key
    CROSS JOIN LATERAL (SELECT coalesce(e.version = ANY (minted) OR w.n = ANY (held), false) AS applied) a;
END
$$;

-- A page of entries in key order. Planned anew each time, so that filters which are not set cost nothing and those which
-- are set find their index.
CREATE FUNCTION onceward_scan_v1(
    p_scope text, p_status text, p_after_scope text, p_after_key text, p_limit integer)
RETURNS TABLE (
    scope text, key text,
    fingerprint text, status varchar, version bigint, attempt integer, write_id text, holder text, repeatable boolean,
    lease_until bigint, expires_at bigint, created_at bigint, completed_at bigint, user_id varchar, endpoint varchar,
    note text, response_status integer, response_headers text, response_body bytea, response_chunks integer)
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
           e.user_id, e.endpoint, e.note, e.response_status, e.response_headers, e.response_body, e.response_chunks
    FROM platform_idempotency_keys e
    WHERE (e.scope, e.key) > (p_after_scope, p_after_key)
      AND (p_scope IS NULL OR e.scope = p_scope)
      AND (p_status IS NULL OR e.status = p_status)
    ORDER BY e.scope, e.key
    LIMIT p_limit;
END
$$;

-- Delete entries whose time has come. Only here is anything deleted, and only while no insert is under way (step 1).
CREATE FUNCTION onceward_purge_v1(p_now bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    moment constant timestamptz := coalesce(onceward_time_v1(p_now), clock_timestamp());
    scopes text[];
    keys   text[];
BEGIN
    -- With nothing to do, nobody is kept waiting.
    IF NOT EXISTS (SELECT FROM platform_idempotency_keys e WHERE e.expires_at <= moment) THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(1869505381, 2);
    SELECT array_agg(d.scope), array_agg(d.key) INTO scopes, keys
    FROM (
        SELECT e.scope, e.key FROM platform_idempotency_keys e
        WHERE e.expires_at <= moment ORDER BY e.expires_at LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) d;
    -- Each statement sees the rows as they are under our locks, and every chunk that was appended before them.
    DELETE FROM platform_idempotency_chunks c USING unnest(scopes, keys) d(scope, key)
    WHERE c.scope = d.scope AND c.key = d.key;
    DELETE FROM platform_idempotency_keys e USING unnest(scopes, keys) d(scope, key)
    WHERE e.scope = d.scope AND e.key = d.key;
    RETURN coalesce(cardinality(scopes), 0);
END
$$;
