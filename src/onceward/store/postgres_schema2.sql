-- From schema 1 to schema 2 on PostgreSQL. Every column is nullable, so that a process of schema 1 can go on beside it: it
-- leaves them out of what it writes.

-- Claims that go in doubt when their lease lapses. Before the columns, so that readers wait only for those.
CREATE INDEX idx_idempotency_keys_lapse ON platform_idempotency_keys (lease_until)
    WHERE status = 'in_progress' AND NOT repeatable;

ALTER TABLE platform_idempotency_keys
    ADD COLUMN claimed_at     timestamptz,  -- when this version was claimed
    ADD COLUMN recovery_point bytea,        -- what the holder recorded on its way
    ADD COLUMN recovery_seq   integer,      -- the number of that record
    ADD COLUMN refuse_until   timestamptz,  -- after expires_at: the key is refused until then
    ADD COLUMN not_done_count integer;      -- attempts that certainly did nothing

-- schema_version is the number that a process of schema 1 compares with its own. It says the same as readable_from,
-- which later schemas compare: the oldest schema whose processes may use these tables.
ALTER TABLE platform_idempotency_meta
    ADD COLUMN readable_from integer,
    ADD COLUMN upgraded_to   integer;       -- the newest schema that these tables have

-- The function of schema 1 takes over a claim in its row, where it would leave the old claimed_at. It sets it from now on.
DO $$
BEGIN
    IF to_regproc('onceward_commit_v3') IS NOT NULL THEN
        EXECUTE replace(
            pg_get_functiondef(to_regproc('onceward_commit_v3')),
            'SET user_id = w.user_id, endpoint = w.endpoint, status = ',
            'SET claimed_at = moment, user_id = w.user_id, endpoint = w.endpoint, status = ');
    END IF;
END
$$;
