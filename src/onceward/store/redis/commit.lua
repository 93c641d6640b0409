-- The script of the Redis store: the state machine of core/claim.py for one entry.
--
-- One call decides one write. It reads, decides, and only then writes, so that a call that is refused or fails changes
-- nothing. The store's clock is TIME, read once in each call (a batch is one call for each write), or the pinned time
-- that a test passes.
--
-- Every key name begins with the prefix ("onceward") and one of 256 buckets, {00} to {ff}: the first byte of
-- sha256(scope NUL key). The braces make the bucket the hash tag, so that all keys of one call are in one slot and the
-- data can be moved to a cluster unchanged. KEYS has every key that a call uses.
--
--   onceward:{xx}:e:<scope>NUL<key>   hash    one entry: the fields below
--   onceward:{xx}:c:<scope>NUL<key>   list    the chunks recorded under its claim
--   onceward:{xx}:all                 zset    every entry, score 0, as scope NUL key: scans use this order
--   onceward:{xx}:open                zset    the same for in_progress and in_doubt only, so that the cost of listing
--                                             unfinished entries depends only on their number
--   onceward:{xx}:due                 zset    entries that purge may delete, or whose result it drops, after the time
--                                             that is the score: expires_at, or refuse_until if they never expire
--   onceward:{xx}:lapse               zset    claims that go in doubt when their lease lapses, by lease_until
--   onceward:{xx}:version             string  the last version of this bucket; it outlives every entry
--   onceward:{00}:schema              string  the number that a process of schema 1 compares with its own; it has the
--                                             same value as the next one
--   onceward:{00}:readable_from       string  the oldest schema whose processes may use this store
--   onceward:{00}:upgraded_to         string  the newest schema to which the store was upgraded
--
-- An entry may also have recovery_point, recovery_seq, refuse_until and not_done_count. They belong to the key: a begin
-- over a failed or lapsed entry does not delete them. claimed_at exists from the second attempt on; for the first
-- attempt, created_at is that time.
--
-- No key has a native expiry: only purge deletes. Times are microseconds. Numbers in Lua are doubles, exact up to 2^53
-- (the year 2255); later times are rounded. Numbers are converted to text only by '%.0f', because tostring would
-- shorten them.
--
-- ARGV: the verb, the pinned time or '', and the entry's scope NUL key. The arguments of each verb follow; see below.
-- The reply to a write is a JSON array: the entry's fields in the order below (false: not set; all false: no entry),
-- then applied (1 or 0), the status that an applied write found (false: absent), and the time. The body follows after a
-- line feed, which JSON cannot contain. The code, headers, chunks and body of an applied move are omitted, because its
-- sender knows them. If the caller knows everything of the entry but the time, the reply is shorter: the time, a space,
-- and the version of a new entry or the earlier status of a finished one.

-- Fields by number. A table with names would cost as much as all the rest of a refused call.
local FINGERPRINT, STATUS, VERSION, ATTEMPT, WRITE_ID = 1, 2, 3, 4, 5
local REPEATABLE, LEASE_UNTIL, EXPIRES_AT, CREATED_AT, COMPLETED_AT = 7, 8, 9, 10, 11
local NOTE, CHUNKS, RECOVERY_POINT, RECOVERY_SEQ, REFUSE_UNTIL, NOT_DONE_COUNT, BODY = 14, 17, 19, 20, 21, 22, 23

-- Lua cannot pass more than about 8,000 values in one call.
local PUSH_MAX = 1000

local verb, member = ARGV[1], ARGV[3]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number)
end

-- The fields of an entry that does not exist.
local NOTHING = {}

-- The entry under KEYS[1] as stored, expired or not. It has no status if it does not exist.
local function look_up()
  return redis.call('HMGET', KEYS[1],
    'fingerprint', 'status', 'version', 'attempt', 'write_id', 'holder',
    'repeatable', 'lease_until', 'expires_at', 'created_at', 'completed_at',
    'user_id', 'endpoint', 'note', 'code', 'headers', 'chunks', 'claimed_at', 'recovery_point', 'recovery_seq',
    'refuse_until', 'not_done_count', 'body')
end

local function is_absent(entry)
  local status = entry[STATUS]
  if not status then
    return true
  end
  local finished = status == 'completed' or status == 'failed'
  return finished and entry[EXPIRES_AT] ~= '' and tonumber(entry[EXPIRES_AT]) <= now
    and not (entry[REFUSE_UNTIL] and tonumber(entry[REFUSE_UNTIL]) > now)
end

local function answer(entry, applied, before)
  local body = entry[BODY]
  entry[23], entry[24], entry[25] = applied, before, text(now)
  local head = cjson.encode(entry)
  return body and head .. '\n' .. body or head
end

local function refuse(entry)
  return answer(entry, 0, false)
end

local function set_due(due, expires_at)
  if expires_at == '' then
    redis.call('ZREM', due, member)
  else
    redis.call('ZADD', due, expires_at, member)
  end
end

-- KEYS: entry, chunks, all, open, due, version, lapse.
-- ARGV: write id, fingerprint, holder, repeatable (1 or 0), lease, retain, a version proved dead, user id, endpoint, and
-- not_done_count of a new entry.
if verb == 'begin' then
  local write_id, fingerprint, holder, repeatable = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
  local lease, retain, dead, user_id, endpoint = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], ARGV[11], ARGV[12]
  -- Most begins find no entry, and reading one field costs a third of reading all.
  local stored = redis.call('HEXISTS', KEYS[1], 'status') == 1 and look_up() or NOTHING
  local before, attempt, created_at, note = false, '1', text(now), ''

  if not is_absent(stored) then
    before = stored[STATUS]
    if stored[FINGERPRINT] ~= fingerprint then
      return refuse(stored)
    end
    -- Abandoned: the holder never reported how it ended, so it counts as lapsed.
    local abandoned = before == 'failed' and not stored[COMPLETED_AT]
    if before ~= 'failed' or abandoned then
      if not abandoned
        and (before ~= 'in_progress' or (tonumber(stored[LEASE_UNTIL]) > now and stored[VERSION] ~= dead)) then
        return refuse(stored)
      end
      before = 'in_progress'
      if stored[REPEATABLE] ~= '1' or repeatable ~= '1' then
        redis.call('ZREM', KEYS[5], member)
        redis.call('ZREM', KEYS[7], member)
        redis.call('ZADD', KEYS[4], 0, member)
        redis.call('HSET', KEYS[1], 'status', 'in_doubt', 'write_id', write_id, 'expires_at', '')
        stored[STATUS], stored[WRITE_ID], stored[EXPIRES_AT] = 'in_doubt', write_id, ''
        return answer(stored, 1, before)
      end
    end
    attempt, created_at, note = text(stored[ATTEMPT] + 1), stored[CREATED_AT], stored[NOTE]
  end

  -- Never below an earlier version, even after a purge, if the clock was set back, or if the counter was lost.
  local last = math.max(tonumber(redis.call('GET', KEYS[6]) or 0), tonumber(stored[VERSION] or 0))
  local version = text(math.max(last + 1, now))
  local lease_until = text(now + lease)
  local expires_at = repeatable == '1' and text(now + lease + retain) or ''

  redis.call('ZADD', KEYS[3], 0, member)
  redis.call('ZADD', KEYS[4], 0, member)
  if repeatable ~= '1' then
    redis.call('ZADD', KEYS[7], lease_until, member)
  end
  redis.call('SET', KEYS[6], version)
  if before then
    redis.call('UNLINK', KEYS[2])
    redis.call('HDEL', KEYS[1], 'completed_at', 'code', 'headers', 'chunks', 'body')
    redis.call('HSET', KEYS[1], 'claimed_at', text(now))
  elseif stored[STATUS] then
    redis.call('UNLINK', KEYS[1], KEYS[2])
  end
  if stored[STATUS] or expires_at ~= '' then
    set_due(KEYS[5], expires_at)
  end
  redis.call('HSET', KEYS[1],
    'fingerprint', fingerprint, 'status', 'in_progress', 'version', version, 'attempt', attempt,
    'write_id', write_id, 'holder', holder, 'repeatable', repeatable, 'lease_until', lease_until,
    'expires_at', expires_at, 'created_at', created_at, 'user_id', user_id, 'endpoint', endpoint, 'note', note)
  if not before then
    if ARGV[13] ~= '0' then
      redis.call('HSET', KEYS[1], 'not_done_count', ARGV[13])
    end
    return text(now) .. ' ' .. version
  end
  return answer({
    fingerprint, 'in_progress', version, attempt, write_id, holder, repeatable, lease_until, expires_at, created_at,
    false, user_id, endpoint, note, false, false, false, text(now), stored[RECOVERY_POINT], stored[RECOVERY_SEQ], false,
    stored[NOT_DONE_COUNT], false,
  }, 1, before)
end

-- KEYS: entry. ARGV: write id, version, number, and the text of the recovery point. In doubt, the write that put the
-- entry in doubt must still recognise itself.
if verb == 'mark' then
  local write_id, version, seq = ARGV[4], ARGV[5], ARGV[6]
  local entry = look_up()
  local before = entry[STATUS]
  if (before ~= 'in_progress' and before ~= 'in_doubt') or entry[VERSION] ~= version
    or tonumber(entry[RECOVERY_SEQ] or 0) >= tonumber(seq) then
    return refuse(entry)
  end

  if before == 'in_progress' then
    entry[WRITE_ID] = write_id
  end
  entry[RECOVERY_POINT], entry[RECOVERY_SEQ] = ARGV[7], seq
  redis.call('HSET', KEYS[1], 'write_id', entry[WRITE_ID], 'recovery_point', ARGV[7], 'recovery_seq', seq)
  return answer(entry, 1, before)
end

-- KEYS: entry, chunks. ARGV: write id, version, number of the first chunk; then the chunks.
if verb == 'append' then
  local write_id, version, seq = ARGV[4], ARGV[5], tonumber(ARGV[6])
  local entry = look_up()
  local count = tonumber(entry[CHUNKS] or 0)
  if entry[STATUS] ~= 'in_progress' or entry[VERSION] ~= version or count + 1 ~= seq then
    return refuse(entry)
  end

  for first = 7, #ARGV, PUSH_MAX do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, first, math.min(first + PUSH_MAX - 1, #ARGV)))
  end
  entry[WRITE_ID], entry[CHUNKS] = write_id, text(count + #ARGV - 6)
  redis.call('HSET', KEYS[1], 'write_id', write_id, 'chunks', entry[CHUNKS])
  return answer(entry, 1, entry[STATUS])
end

-- KEYS: entry. ARGV: a status, or '' for any. Returns nil for an entry with another status.
if verb == 'read' then
  local entry = look_up()
  if ARGV[4] ~= '' and entry[STATUS] ~= ARGV[4] then
    return false
  end
  return refuse(entry)
end

-- KEYS: entry, chunks. ARGV: version, the number to start after, limit.
if verb == 'chunks' then
  if redis.call('HGET', KEYS[1], 'version') ~= ARGV[4] then
    return {}
  end
  return redis.call('LRANGE', KEYS[2], ARGV[5], ARGV[5] + ARGV[6] - 1)
end

-- KEYS: due. ARGV: limit. Returns the members that purge may delete or change.
if verb == 'due' then
  return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[4])
end

-- KEYS: entry, chunks, all, open, due. Checks again before it deletes. Returns the number of entries that were deleted
-- or lost their result.
if verb == 'purge' then
  local stored = redis.call('HMGET', KEYS[1], 'expires_at', 'refuse_until')
  local expires_at, refuse_until = stored[1], stored[2]
  local due = expires_at
  if expires_at == '' and refuse_until then
    due = refuse_until
  end
  if due and (due == '' or tonumber(due) > now) then
    set_due(KEYS[5], due)
    return 0
  end
  if refuse_until and (expires_at == '' or tonumber(refuse_until) > now) then
    -- Entry.without_result of core/entry.py.
    redis.call('UNLINK', KEYS[2])
    redis.call('HDEL', KEYS[1], 'code', 'headers', 'chunks', 'body', 'recovery_point', 'recovery_seq')
    if expires_at == '' then
      redis.call('HDEL', KEYS[1], 'refuse_until')
      set_due(KEYS[5], '')
    else
      redis.call('HSET', KEYS[1], 'expires_at', refuse_until)
      set_due(KEYS[5], refuse_until)
    end
    return 1
  end
  -- Members whose entry was removed by a DEL are deleted too.
  redis.call('ZREM', KEYS[3], member)
  redis.call('ZREM', KEYS[4], member)
  redis.call('ZREM', KEYS[5], member)
  redis.call('UNLINK', KEYS[1], KEYS[2])
  return expires_at and 1 or 0
end

-- KEYS: lapse. ARGV: limit. Returns the members whose lease has lapsed according to this index, the oldest first.
if verb == 'lapsed' then
  return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[4])
end

-- KEYS: entry, lapse. Corrects the index for this entry, because a process of schema 1 does not maintain it. Returns
-- the entry, as a read does, if it is not repeatable and its lease has lapsed; otherwise nil.
if verb == 'check' then
  local entry = look_up()
  if entry[STATUS] ~= 'in_progress' or entry[REPEATABLE] == '1' then
    redis.call('ZREM', KEYS[2], member)
    return false
  end
  redis.call('ZADD', KEYS[2], entry[LEASE_UNTIL], member)
  return tonumber(entry[LEASE_UNTIL]) <= now and refuse(entry)
end

-- All other verbs are moves: the states that each accepts, and the new state, as in MOVES of core/claim.py. Settle
-- comes first. Tables are avoided, because they would be created again in every call.
local held, doubted, settled, status = true, false, false, 'failed'
if verb == 'settle' then
  doubted, status = true, 'completed'
elseif verb == 'renew' then
  status = 'in_progress'
elseif verb == 'doubt' or verb == 'abandon' or verb == 'abandon_dead' then
  status = 'in_doubt' -- or 'failed' below, if an abandoned claim is repeatable
elseif verb == 'uphold' then
  held, doubted, status = false, true, 'completed'
elseif verb == 'overturn' then
  held, doubted = false, true
elseif verb == 'forget' then
  held, settled = false, true
end -- fail, not_done, release

local function is_accepted(before)
  return (held and before == 'in_progress') or (doubted and before == 'in_doubt')
    or (settled and before == 'completed')
end

-- KEYS: entry, open, due, lapse.
-- ARGV: write id, version, lease, retain, note, the last write that the caller knows or '', and for how long the key is
-- refused after the retention (-1: it never expires). Then those of code, headers, chunks and body that are set, each as
-- its name and its value.
local write_id, version, lease, retain, note = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]

-- An unfinished entry has no code, headers or body, so fields that are not set here stay unset. A forgotten one loses
-- them.
local function finish(expires_at, repeatable)
  redis.call('ZREM', KEYS[2], member)
  if repeatable ~= '1' then
    redis.call('ZREM', KEYS[4], member)
  end
  local refuse_until = false
  if ARGV[10] ~= '0' and status == 'completed' then
    refuse_until = text(now + retain + math.max(tonumber(ARGV[10]), 0))
    redis.call('HSET', KEYS[1], 'refuse_until', refuse_until)
  end
  if refuse_until and ARGV[10] == '-1' then
    expires_at = ''
    set_due(KEYS[3], refuse_until)
  else
    set_due(KEYS[3], expires_at)
  end
  if verb == 'not_done' or verb == 'overturn' then
    redis.call('HINCRBY', KEYS[1], 'not_done_count', 1)
  end
  if verb == 'overturn' then
    redis.call('HDEL', KEYS[1], 'recovery_point', 'recovery_seq')
  elseif verb == 'forget' then
    redis.call('HDEL', KEYS[1], 'code', 'headers', 'body', 'refuse_until')
  end
  redis.call('HSET', KEYS[1],
    'status', status, 'write_id', write_id, 'expires_at', expires_at, 'completed_at', text(now),
    'note', note, 'chunks', '0', unpack(ARGV, 11))
  return expires_at, refuse_until
end

if ARGV[9] ~= '' and (status == 'completed' or status == 'failed') then
  local stored = redis.call('HMGET', KEYS[1], 'status', 'version', 'write_id', 'repeatable')
  -- An accepted entry is unfinished, so it cannot have expired. (No claim cache knows a settled entry.)
  if stored[2] == version and stored[3] == ARGV[9] and is_accepted(stored[1]) then
    finish(text(now + retain), stored[4])
    return text(now) .. ' ' .. stored[1]
  end
end

local entry = look_up()
local before = entry[STATUS]
if is_absent(entry) or entry[VERSION] ~= version or not is_accepted(before) then
  return refuse(entry)
end
if verb == 'abandon' and tonumber(entry[LEASE_UNTIL]) > now then
  return refuse(entry)
end
if verb == 'abandon' or verb == 'abandon_dead' then
  note = note ~= '' and note or entry[NOTE]
  status = entry[REPEATABLE] == '1' and 'failed' or status
end

entry[STATUS], entry[WRITE_ID] = status, write_id
if status == 'in_progress' then
  entry[LEASE_UNTIL] = text(now + lease)
  entry[EXPIRES_AT] = entry[REPEATABLE] == '1' and text(now + lease + retain) or ''
  if entry[REPEATABLE] == '1' then
    set_due(KEYS[3], entry[EXPIRES_AT])
  else
    redis.call('ZADD', KEYS[4], entry[LEASE_UNTIL], member)
  end
  redis.call('HSET', KEYS[1],
    'write_id', write_id, 'lease_until', entry[LEASE_UNTIL], 'expires_at', entry[EXPIRES_AT])
elseif status == 'in_doubt' then
  entry[EXPIRES_AT], entry[NOTE] = '', note
  set_due(KEYS[3], '')
  redis.call('ZREM', KEYS[4], member)
  redis.call('HSET', KEYS[1], 'status', status, 'write_id', write_id, 'expires_at', '', 'note', note)
elseif verb == 'abandon' or verb == 'abandon_dead' then
  -- Without completed_at, because the holder never reported how it ended.
  entry[EXPIRES_AT], entry[NOTE], entry[CHUNKS] = text(now + retain), note, '0'
  redis.call('ZREM', KEYS[2], member)
  set_due(KEYS[3], entry[EXPIRES_AT])
  redis.call('HSET', KEYS[1],
    'status', status, 'write_id', write_id, 'expires_at', entry[EXPIRES_AT], 'note', note, 'chunks', '0')
else
  entry[COMPLETED_AT], entry[NOTE] = text(now), note
  entry[EXPIRES_AT], entry[REFUSE_UNTIL] = finish(text(now + retain), entry[REPEATABLE])
  if verb == 'not_done' or verb == 'overturn' then
    entry[NOT_DONE_COUNT] = text((entry[NOT_DONE_COUNT] or 0) + 1)
  end
  if verb == 'overturn' then
    entry[RECOVERY_POINT], entry[RECOVERY_SEQ] = false, false
  end
end
return answer(entry, 1, before)
