-- The ledger on PostgreSQL: its tables, and all functions but the one that decides a batch (commit.sql). The columns of
-- the HTTP contract come first; those that a claim needs follow. Runs once, in one transaction, under a lock.

CREATE TABLE platform_idempotency_keys (
    scope            text COLLATE "C" NOT NULL,  -- namespace, layer and principal; "C": byte order, as in all stores
    key              text COLLATE "C" NOT NULL,
    user_id          varchar(255) NOT NULL,
    endpoint         varchar(255) NOT NULL,
    status           varchar(20)  NOT NULL DEFAULT 'in_progress'
                     CHECK (status IN ('in_progress', 'completed', 'failed', 'in_doubt')),
    response_status  integer,
    response_headers text,
    response_body    bytea,                      -- NULL with response_chunks = 0: it happened, its result was not stored
    response_chunks  integer      NOT NULL DEFAULT 0,
    created_at       timestamptz  NOT NULL DEFAULT now(),
    completed_at     timestamptz,
    fingerprint      text         NOT NULL,
    version          bigint       NOT NULL,      -- the fencing token
    attempt          integer      NOT NULL,
    write_id         text         NOT NULL,      -- id of the last write, so that a repeated write recognises itself
    holder           text         NOT NULL,
    repeatable       boolean      NOT NULL,
    lease_until      timestamptz  NOT NULL,
    expires_at       timestamptz,                -- when purge may delete it; NULL: never
    note             text         NOT NULL DEFAULT '',
    PRIMARY KEY (scope, key)
);

CREATE INDEX idx_idempotency_keys_created ON platform_idempotency_keys (created_at);
CREATE INDEX idx_idempotency_keys_user ON platform_idempotency_keys (user_id);
CREATE INDEX idx_idempotency_keys_expires ON platform_idempotency_keys (expires_at) WHERE expires_at IS NOT NULL;
-- Operators list unfinished entries; an index of only those stays small.
CREATE INDEX idx_idempotency_keys_open ON platform_idempotency_keys (status, scope, key)
    WHERE status IN ('in_progress', 'in_doubt');

CREATE TABLE platform_idempotency_chunks (
    scope text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    seq   integer NOT NULL,
    data  bytea   NOT NULL,
    PRIMARY KEY (scope, key, seq)
);

-- These values are written once, rarely read and deleted after a day, so compression would cost more than it saves.
ALTER TABLE platform_idempotency_keys ALTER COLUMN response_body SET STORAGE EXTERNAL;
ALTER TABLE platform_idempotency_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

-- Versions outlive every entry. CACHE 1, because a session that reserves numbers would use old ones later.
CREATE SEQUENCE platform_idempotency_versions AS bigint CACHE 1;

CREATE TABLE platform_idempotency_meta (
    one            integer PRIMARY KEY CHECK (one = 1),  -- one row
    schema_version integer NOT NULL
);

-- Times are sent as whole microseconds since 1970. A double represents those exactly until the year 2255.
CREATE FUNCTION onceward_time_v1(microseconds bigint) RETURNS timestamptz
LANGUAGE sql STABLE RETURN timestamptz 'epoch' + microseconds * interval '1 microsecond';

CREATE FUNCTION onceward_microseconds_v1(moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE RETURN (extract(epoch FROM moment) * 1000000)::bigint;

-- Entry.absent of core/claim.py: finished, and its retention is over.
CREATE FUNCTION onceward_absent_v1(e platform_idempotency_keys, moment timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN e.status IN ('completed', 'failed') AND e.expires_at <= moment;

-- A page of entries in key order. Planned again for each call, so that unset filters cost nothing and set filters use
-- their index.
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

-- Delete entries whose retention is over. Only this function deletes entries, and only while no batch inserts any
-- (step 1 of onceward_commit).
CREATE FUNCTION onceward_purge_v1(p_now bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    moment constant timestamptz := coalesce(onceward_time_v1(p_now), clock_timestamp());
    scopes text[];
    keys   text[];
BEGIN
    -- With nothing to delete, take no lock.
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
    -- Each statement sees the rows as they are under these locks, and every chunk that was appended before.
    DELETE FROM platform_idempotency_chunks c USING unnest(scopes, keys) d(scope, key)
    WHERE c.scope = d.scope AND c.key = d.key;
    DELETE FROM platform_idempotency_keys e USING unnest(scopes, keys) d(scope, key)
    WHERE e.scope = d.scope AND e.key = d.key;
    RETURN coalesce(cardinality(scopes), 0);
END
$$;
