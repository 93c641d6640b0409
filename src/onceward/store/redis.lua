-- The Redis store's one script: core/claim.py's machine for one entry, run where the entry is.
--
-- One call decides one write. It reads, decides, and only then writes, so that a refused or failing call changes
-- nothing. The store's clock is TIME, read once in each call (a batch is one call for each write), or the pinned
-- time that a test passes.
--
-- Every name begins with the prefix ("onceward") and one of 256 buckets, as {00} to {ff}: the first byte of
-- sha256(scope NUL key). The braces make the bucket the hash tag, so that all names of one call are in one slot and
-- the data can move to a cluster as it is. Every name a call touches is given in KEYS.
--
--   onceward:{xx}:e:<scope>NUL<key>   hash    one entry: the fields below, "body" and nothing else
--   onceward:{xx}:c:<scope>NUL<key>   list    the chunks recorded under its claim
--   onceward:{xx}:all                 zset    every entry, score 0, as scope NUL key: paged in that order
--   onceward:{xx}:open                zset    the same for in_progress and in_doubt alone, so that asking for what
--                                             is unfinished costs what is unfinished
--   onceward:{xx}:due                 zset    what purge may take one day, by expires_at
--   onceward:{xx}:version             string  the last version minted here; it outlives every entry
--   onceward:{00}:schema              string  the version of this layout
--
-- Nothing has a native expiry: only purge deletes. Times are microseconds. Lua's numbers are doubles, exact up to
-- 2^53 (the year 2255); later times are rounded. Numbers become text by '%.0f' alone: tostring would shorten them.
--
-- ARGV: the verb, the pinned time or '', the entry's scope NUL key; then what each verb below says.
-- A write answers {json, body}. The JSON array is: applied (1 or 0), the status that an applied write found (null:
-- absent), the time, and the entry's fields in this order (none of them when there is no entry; null: not set).
-- The body comes with refused writes and reads; whoever had a write applied knows it.

local FIELDS = {
  'fingerprint', 'status', 'version', 'attempt', 'write_id', 'holder', 'repeatable', 'lease_until', 'expires_at',
  'created_at', 'completed_at', 'user_id', 'endpoint', 'note', 'code', 'headers', 'chunks',
}

-- Which states each verb accepts, and the state it leaves: MOVES of core/claim.py.
local HELD, DOUBTED, EITHER = {in_progress = true}, {in_doubt = true}, {in_progress = true, in_doubt = true}
local MOVES = {
  renew = {HELD, 'in_progress'},
  settle = {EITHER, 'completed'},
  fail = {HELD, 'failed'},
  release = {HELD, 'failed'},
  doubt = {HELD, 'in_doubt'},
  uphold = {DOUBTED, 'completed'},
  overturn = {DOUBTED, 'failed'},
}

-- Lua cannot hand over more than some 8,000 values at once.
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

-- The entry under KEYS[1] as stored, expired or not; nil when there is none.
local function look_up()
  local values = redis.call('HMGET', KEYS[1], 'body', unpack(FIELDS))
  if not values[3] then
    return nil
  end
  local entry = {body = values[1]}
  for i, name in ipairs(FIELDS) do
    entry[name] = values[i + 1]
  end
  return entry
end

local function is_absent(entry)
  if not entry then
    return true
  end
  local finished = entry.status == 'completed' or entry.status == 'failed'
  return finished and entry.expires_at ~= '' and tonumber(entry.expires_at) <= now
end

local function answer(applied, before, entry)
  local head = {applied, before or cjson.null, text(now)}
  if entry then
    for i, name in ipairs(FIELDS) do
      head[i + 3] = entry[name] or cjson.null
    end
  end
  return {cjson.encode(head), applied == 0 and entry and entry.body or false}
end

-- Write these fields, given as name, value, name, value, and show them in the entry too.
local function put(entry, changes)
  redis.call('HSET', KEYS[1], unpack(changes))
  for i = 1, #changes, 2 do
    entry[changes[i]] = changes[i + 1]
  end
end

local function set_due(due, expires_at)
  if expires_at == '' then
    redis.call('ZREM', due, member)
  else
    redis.call('ZADD', due, expires_at, member)
  end
end

-- KEYS: entry, chunks, all, open, due, version.
-- ARGV: write id, fingerprint, holder, repeatable (1 or 0), lease, retain, a version proved dead, user id, endpoint.
local function begin()
  local write_id, fingerprint, holder, repeatable = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
  local lease, retain, dead = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
  local _, chunks, all, open, due, versions = unpack(KEYS)
  local stored = look_up()
  local found = not is_absent(stored) and stored or nil
  local before = found and found.status

  if found then
    if found.fingerprint ~= fingerprint then
      return answer(0, nil, stored)
    end
    if found.status ~= 'failed' then
      local lapsed = found.status == 'in_progress' and (tonumber(found.lease_until) <= now or found.version == dead)
      if not lapsed then
        return answer(0, nil, stored)
      end
      if found.repeatable ~= '1' or repeatable ~= '1' then
        redis.call('ZREM', due, member)
        put(found, {'status', 'in_doubt', 'write_id', write_id, 'expires_at', ''})
        return answer(1, before, found)
      end
    end
  end

  -- Never below one that was seen: not after a purge, nor when the clock was set back or the counter was lost.
  local version = math.max(tonumber(redis.call('GET', versions) or 0) + 1, now)
  if stored then
    version = math.max(version, tonumber(stored.version) + 1)
  end
  local lease_until = now + lease
  local expires_at = repeatable == '1' and text(lease_until + retain) or ''
  local changes = {
    'fingerprint', fingerprint, 'status', 'in_progress', 'version', text(version),
    'attempt', found and text(found.attempt + 1) or '1', 'write_id', write_id, 'holder', holder,
    'repeatable', repeatable, 'lease_until', text(lease_until), 'expires_at', expires_at,
    'created_at', found and found.created_at or text(now), 'user_id', ARGV[11], 'endpoint', ARGV[12],
    'note', found and found.note or '',
  }

  redis.call('ZADD', all, 0, member)
  redis.call('ZADD', open, 0, member)
  set_due(due, expires_at)
  redis.call('SET', versions, text(version))
  if stored then
    redis.call('UNLINK', KEYS[1], chunks)
  end
  local held = {}
  put(held, changes)
  return answer(1, before, held)
end

-- KEYS: entry, open, due.
-- ARGV: write id, version, lease, retain, note; then those of code, headers, body and chunks that are set, each as
-- its name and its value.
local function move()
  local write_id, version, lease, retain, note = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
  local _, open, due = unpack(KEYS)
  local accepted, status = unpack(MOVES[verb])
  local entry = look_up()
  if is_absent(entry) or entry.version ~= version or not accepted[entry.status] then
    return answer(0, nil, entry)
  end

  local before = entry.status
  local expires_at, changes
  if status == 'in_progress' then
    local lease_until = now + lease
    expires_at = entry.repeatable == '1' and text(lease_until + retain) or ''
    changes = {'lease_until', text(lease_until)}
  elseif status == 'in_doubt' then
    expires_at = ''
    changes = {'note', note}
  else
    -- An unfinished entry has no code, headers or body, so what is not set now stays unset.
    expires_at = text(now + retain)
    changes = {'completed_at', text(now), 'note', note, 'chunks', '0', unpack(ARGV, 9)}
    redis.call('ZREM', open, member)
  end
  for _, change in ipairs({'status', status, 'write_id', write_id, 'expires_at', expires_at}) do
    changes[#changes + 1] = change
  end
  set_due(due, expires_at)
  put(entry, changes)
  return answer(1, before, entry)
end

-- KEYS: entry, chunks. ARGV: write id, version, number of the first chunk; then the chunks.
local function append()
  local write_id, version, seq = ARGV[4], ARGV[5], tonumber(ARGV[6])
  local entry = look_up()
  if not entry or entry.status ~= 'in_progress' or entry.version ~= version then
    return answer(0, nil, entry)
  end
  local count = tonumber(entry.chunks or 0)
  if count + 1 ~= seq then
    return answer(0, nil, entry)
  end

  for first = 7, #ARGV, PUSH_MAX do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, first, math.min(first + PUSH_MAX - 1, #ARGV)))
  end
  put(entry, {'write_id', write_id, 'chunks', text(count + #ARGV - 6)})
  return answer(1, entry.status, entry)
end

-- KEYS: entry. ARGV: a status, or '' for any. Answers nothing for an entry of another status.
local function read()
  local entry = look_up()
  if entry and ARGV[4] ~= '' and entry.status ~= ARGV[4] then
    entry = nil
  end
  return answer(0, nil, entry)
end

-- KEYS: entry, chunks. ARGV: version, the number to start after, how many.
local function chunks()
  if redis.call('HGET', KEYS[1], 'version') ~= ARGV[4] then
    return {}
  end
  return redis.call('LRANGE', KEYS[2], ARGV[5], ARGV[5] + ARGV[6] - 1)
end

-- KEYS: due. ARGV: how many. Answers the members that purge may take.
local function list_due()
  return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[4])
end

-- KEYS: entry, chunks, all, open, due. Looks again before it deletes; answers how many it did.
local function purge()
  local entry, recorded, all, open, due = unpack(KEYS)
  local expires_at = redis.call('HGET', entry, 'expires_at')
  if expires_at and (expires_at == '' or tonumber(expires_at) > now) then
    set_due(due, expires_at)
    return 0
  end
  -- Members that have lost their entry, to someone's DEL, go too.
  redis.call('ZREM', all, member)
  redis.call('ZREM', open, member)
  redis.call('ZREM', due, member)
  redis.call('UNLINK', entry, recorded)
  return expires_at and 1 or 0
end

if verb == 'begin' then
  return begin()
elseif MOVES[verb] then
  return move()
elseif verb == 'append' then
  return append()
elseif verb == 'read' then
  return read()
elseif verb == 'chunks' then
  return chunks()
elseif verb == 'due' then
  return list_due()
elseif verb == 'purge' then
  return purge()
end
return redis.error_reply('ERR onceward: unknown verb')
