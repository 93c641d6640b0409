-- From schema 1 to schema 2 on SQLite. Every new column is nullable, so that a process of schema 1, which does not
-- write them, can use the tables at the same time.

ALTER TABLE platform_idempotency_keys ADD COLUMN claimed_at TEXT;         -- when this version was claimed
ALTER TABLE platform_idempotency_keys ADD COLUMN recovery_point BLOB;     -- progress that the holder recorded
ALTER TABLE platform_idempotency_keys ADD COLUMN recovery_seq INTEGER;    -- the number of that record
ALTER TABLE platform_idempotency_keys ADD COLUMN refuse_until TEXT;       -- after expires_at: the key is refused until then
ALTER TABLE platform_idempotency_keys ADD COLUMN not_done_count INTEGER;  -- attempts that certainly did nothing

-- Claims that go in doubt when their lease lapses.
CREATE INDEX idx_idempotency_keys_lapse ON platform_idempotency_keys (lease_until)
    WHERE status = 'in_progress' AND repeatable = 0;

-- schema_version is the number that a process of schema 1 compares with its own. It has the same value as
-- readable_from, which processes of later schemas compare: the oldest schema whose processes may use these tables.
ALTER TABLE platform_idempotency_meta ADD COLUMN readable_from INTEGER;
ALTER TABLE platform_idempotency_meta ADD COLUMN upgraded_to INTEGER;     -- the newest schema that these tables have
