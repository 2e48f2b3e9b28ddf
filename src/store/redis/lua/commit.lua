-- Applies a batch of decisions: settles repeats, compares, checks every type, then writes what was accepted.
-- Decisions stand in the order of their partitions. "i" below is the ordinal of a decision, from 1.
--
-- KEYS  1            window of the lane (hash: sequence mod 16 → sequence ":" verdicts, "newest" → sequence)
--       2 .. n+1     record of each decision
--       then, in the order of ARGV's sections, per
--         version    documents of the workflow (of a store on one Redis)
--         delete     hash of payloads
--         stream     stream, mark of what was trimmed
--         queue      ready zset, set of non-empty types, claimed zset, hash of claimed places
--         times      zset
--         payloads   hash
-- ARGV  1 sequence   2 n   3 "m" read whole records, "g" their prefixes   4 "1" if anything is to be written
--       5 channel of hints   6 bound of a stream, entries   7 life of an idle window, ms
--       8 versions   9 deletes   10 streams   11 queues   12 time groups   13 payload groups   (how many of each follow)
--       then n prefixes of 24 B ("" = must be absent), n records ("" = none to write), n event notes ("" = none)
--       version:   field of its time, the time as it must be, new runs of it, then i each
--       delete:    i
--       stream:    first i, last i
--       queue:     type, partition, adds, removes, then (i, score, entry) per add, (i, entry) per remove
--       times:     lowers, sets, removes, then (i, score, run) per lower and set, (i, run) per remove
--       payloads:  i, fields, then (field, value) each
--       Scores are whole numbers within 2^53; times are µs.
-- Returns  { verdicts as a text of "1", "0" and "2" (a new run of a version that is not there) in the order of ARGV,
--            then per queue: lowest score or "", depth }
--          or { verdicts } for a sequence answered before; error FORGOTTEN for one older than the window.
-- Bounded by its arguments; 32 more entries are read when a stream is trimmed.

local ERR = 'WRONGTYPE a key of the batch holds another kind of value'
local n = tonumber(ARGV[2])
local remember = ARGV[4] == '1'
local sequence = tonumber(ARGV[1])

-- 1. A repeat is answered as the first time.
local slot, newest
if remember then
  slot = tostring(sequence % 16)
  local w = redis.pcall('HMGET', KEYS[1], slot, 'newest')
  if w.err then return w end
  newest = w[2] and tonumber(w[2])
  if newest then
    local at = w[1] and string.find(w[1], ':', 1, true)
    if at and string.sub(w[1], 1, at - 1) == ARGV[1] then return { string.sub(w[1], at + 1) } end
    if sequence + 16 <= newest then
      return redis.error_reply('FORGOTTEN the sequence is older than the window of its lane')
    end
  end
end

-- 2. Compare.
local E, R, N = 13, 13 + n, 13 + 2 * n
local ok, absent, all = {}, {}, true
if ARGV[3] == 'm' then
  local v = redis.call('MGET', unpack(KEYS, 2, n + 1))
  for i = 1, n do
    local r, e = v[i], ARGV[E + i]
    if r then
      ok[i] = e ~= '' and string.sub(r, 1, 24) == e
    else
      absent[#absent + 1] = KEYS[i + 1]
      ok[i] = e == ''
    end
    if not ok[i] then all = false end
  end
  -- MGET calls a key of another type absent.
  if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then return redis.error_reply(ERR) end
else
  for i = 1, n do
    local r = redis.pcall('GETRANGE', KEYS[i + 1], 0, 23)
    if type(r) == 'table' then return r end
    ok[i] = r == ARGV[E + i]
    if not ok[i] then all = false end
  end
end
local marks = {}
for i = 1, n do marks[i] = ok[i] and '1' or '0' end
local a, k = N + n, n + 1
for _ = 1, tonumber(ARGV[8]) do
  local created = redis.pcall('HGET', KEYS[k + 1], ARGV[a + 1])
  if type(created) == 'table' then return created end
  local stands, runs = created == ARGV[a + 2], tonumber(ARGV[a + 3])
  for j = a + 4, a + 3 + runs do
    local i = tonumber(ARGV[j])
    if ok[i] and not stands then
      ok[i], marks[i] = false, '2'
    end
  end
  a, k = a + 3 + runs, k + 1
end
local verdicts = table.concat(marks)
if not remember then return { verdicts } end

-- 3. Check the types of all that will be written, and learn what the writes need to know.
local deletes, streams, queues = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local times, payloads = tonumber(ARGV[12]), tonumber(ARGV[13])
local first_delete = k
local failed
-- The size of a key of the kind that `command` measures; none, and `failed` set, if it is of another.
local function size(command, key)
  local r = redis.pcall(command, key)
  if type(r) ~= 'table' then return r end
  failed = r
end
k = k + deletes
local length, depth, claims = {}, {}, {}
for s = 1, streams do
  length[s] = size('XLEN', KEYS[k + 1])
  k = k + 2
end
for q = 1, queues do
  depth[q] = size('ZCARD', KEYS[k + 1])
  size('SCARD', KEYS[k + 2])
  claims[q] = size('ZCARD', KEYS[k + 3])
  size('HLEN', KEYS[k + 4])
  k = k + 4
end
for _ = 1, times do
  size('ZCARD', KEYS[k + 1])
  k = k + 1
end
for _ = 1, payloads do
  size('HLEN', KEYS[k + 1])
  k = k + 1
end
if failed then return failed end

-- 4. Write. Records first: a full Redis refuses here, before anything was written.
local LIMIT = 1000
-- Sends command ‖ values in pieces of at most LIMIT values; `head` is how many values open each piece.
local function send(head, list)
  local count = #list
  if count == head then return end
  if count <= LIMIT + head then return redis.call(unpack(list)) end
  for from = head + 1, count, LIMIT do
    local piece = {}
    for h = 1, head do piece[h] = list[h] end
    for j = from, math.min(from + LIMIT - 1, count) do piece[#piece + 1] = list[j] end
    redis.call(unpack(piece))
  end
end

local put, values = { 'MSET' }, 1
for i = 1, n do
  if ok[i] then
    local record = ARGV[R + i]
    if record ~= '' then
      put[values + 1], put[values + 2] = KEYS[i + 1], record
      values = values + 2
    end
  else
    ARGV[N + i] = ''
  end
end
if values > 1 then
  local r = redis.pcall(unpack(put))
  if r.err then return r end
end

k = first_delete
-- Deletions next: with nothing to put they are the first write, and a full Redis must take them.
for _ = 1, deletes do
  local i = tonumber(ARGV[a + 1])
  if ok[i] then redis.call('UNLINK', KEYS[i + 1], KEYS[k + 1]) end
  a, k = a + 1, k + 1
end
for s = 1, streams do
  local notes = table.concat(ARGV, '', N + tonumber(ARGV[a + 1]), N + tonumber(ARGV[a + 2]))
  if notes ~= '' then
    local key = KEYS[k + 1]
    redis.call('XADD', key, '*', 'n', notes)
    local count = length[s] + 1
    if count >= tonumber(ARGV[6]) + 32 then
      local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 32)
      redis.call('XTRIM', key, 'MAXLEN', count - #oldest)
      redis.call('SET', KEYS[k + 2], oldest[#oldest][1])
    end
  end
  a, k = a + 2, k + 2
end

local reply = { verdicts }
for q = 1, queues do
  local key, types, task_type, partition = KEYS[k + 1], KEYS[k + 2], ARGV[a + 1], ARGV[a + 2]
  local adds, removes = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local from = a + 4
  a = from + 3 * adds
  local zrem, unclaim, unplace = { 'ZREM', key }, { 'ZREM', KEYS[k + 3] }, { 'HDEL', KEYS[k + 4] }
  for _ = 1, removes do
    if ok[tonumber(ARGV[a + 1])] then
      local entry = ARGV[a + 2]
      zrem[#zrem + 1] = entry
      if claims[q] > 0 then
        local claim = task_type .. '\0' .. entry
        unclaim[#unclaim + 1] = claim
        unplace[#unplace + 1] = claim
      end
    end
    a = a + 2
  end
  send(2, zrem)
  send(2, unclaim)
  send(2, unplace)
  local zadd = { 'ZADD', key }
  for _ = 1, adds do
    if ok[tonumber(ARGV[from + 1])] then
      zadd[#zadd + 1] = ARGV[from + 2]
      zadd[#zadd + 1] = ARGV[from + 3]
    end
    from = from + 3
  end
  send(2, zadd)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local now = 0
  if first[1] then
    now = redis.call('ZCARD', key)
    if depth[q] == 0 then
      redis.call('SADD', types, task_type)
      redis.call('PUBLISH', ARGV[5], partition .. ' ' .. task_type)
    end
  elseif depth[q] > 0 then
    redis.call('SREM', types, task_type)
  end
  reply[#reply + 1] = first[2] or ''
  reply[#reply + 1] = now
  k = k + 4
end

for _ = 1, times do
  local key = KEYS[k + 1]
  local lowers, sets, removes = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  a = a + 3
  for pass = 1, 2 do
    local zadd = pass == 1 and { 'ZADD', key, 'LT' } or { 'ZADD', key }
    local head = #zadd
    for _ = 1, pass == 1 and lowers or sets do
      if ok[tonumber(ARGV[a + 1])] then
        zadd[#zadd + 1] = ARGV[a + 2]
        zadd[#zadd + 1] = ARGV[a + 3]
      end
      a = a + 3
    end
    send(head, zadd)
  end
  local zrem = { 'ZREM', key }
  for _ = 1, removes do
    if ok[tonumber(ARGV[a + 1])] then zrem[#zrem + 1] = ARGV[a + 2] end
    a = a + 2
  end
  send(2, zrem)
  k = k + 1
end

for _ = 1, payloads do
  local accepted, fields = ok[tonumber(ARGV[a + 1])], tonumber(ARGV[a + 2])
  a = a + 2
  if accepted then
    local hset = { 'HSET', KEYS[k + 1] }
    for j = 1, 2 * fields do hset[j + 2] = ARGV[a + j] end
    send(2, hset)
  end
  a, k = a + 2 * fields, k + 1
end

-- 5. Remember the answer.
local r
if newest and newest > sequence then
  r = redis.pcall('HSET', KEYS[1], slot, ARGV[1] .. ':' .. verdicts)
else
  r = redis.pcall('HSET', KEYS[1], slot, ARGV[1] .. ':' .. verdicts, 'newest', ARGV[1])
end
if type(r) == 'table' then return r end
redis.call('PEXPIRE', KEYS[1], ARGV[7])
return reply
