-- From schema 1 to schema 2 on PostgreSQL. Every new column is nullable, so that a process of schema 1, which does not
-- write them, can use the tables at the same time.

-- Claims that go in doubt when their lease lapses. The index comes before the columns, so that readers wait only for
-- the columns.
CREATE INDEX idx_idempotency_keys_lapse ON platform_idempotency_keys (lease_until)
    WHERE status = 'in_progress' AND NOT repeatable;

ALTER TABLE platform_idempotency_keys
    ADD COLUMN claimed_at     timestamptz,  -- when this version was claimed
    ADD COLUMN recovery_point bytea,        -- progress that the holder recorded
    ADD COLUMN recovery_seq   integer,      -- the number of that record
    ADD COLUMN refuse_until   timestamptz,  -- after expires_at: the key is refused until then
    ADD COLUMN not_done_count integer;      -- attempts that certainly did nothing

-- schema_version is the number that a process of schema 1 compares with its own. It has the same value as
-- readable_from, which processes of later schemas compare: the oldest schema whose processes may use these tables.
ALTER TABLE platform_idempotency_meta
    ADD COLUMN readable_from integer,
    ADD COLUMN upgraded_to   integer;       -- the newest schema that these tables have

-- When the function of schema 1 takes over a claim, it reuses the row and would leave the old claimed_at. Make it set
-- claimed_at.
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
