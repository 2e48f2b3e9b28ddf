-- One tick of some partitions: their lease clocks go on, due runs are told and moved ahead, expired claims go back to
-- their queues, heads of the non-empty queues are told. Retention is looked at now and then, and what nobody asks for
-- any more is swept. Where nothing is due, nothing ready and nothing claimed, a partition costs one command.
--
-- KEYS  per partition: clock (text "LEASE WALL RETAINED SWEPT", µs), wake-ups, retention, claimed zset, hash of claimed
--       places, set of non-empty types, zset of sessions' leases, hash of sessions
-- ARGV  1 runs told at most, of each kind and partition; 0: the clocks go on, and nothing else
--       2 the most a lease clock goes on, µs   3 how far due runs move, µs   4 claims returned at most, in all
--       5 queues told at most of a partition   6 between two looks at retention, µs   7 between two sweeps, µs
--       8 how long a session outlives its lease, µs   9 sessions swept at most, in all   10 channel of hints
--       then per partition: its number, what the key of a ready zset begins with (the type follows)
-- Returns  { now µs, then per partition { lease clock µs, claims returned, next wake-up µs or "", { due run, … },
--          { expired run, … }, { type, score, depth, … } } }
-- On a full Redis it writes nothing, and tells clocks, expired runs and heads alone.
-- Bounded by its arguments. The keys of ready zsets are of the same slot as the other keys of their partition.

local WIDTH = 8
local partitions = #KEYS / WIDTH
local max = tonumber(ARGV[1])

local function whole(number) return string.format('%.0f', number) end
-- An error of a command before the first write is the answer.
local failed
local function ask(...)
  local r = redis.pcall(...)
  if type(r) == 'table' and r.err then
    failed = failed or r
    return {}
  end
  return r
end

-- 1. Look, and check the types of all that will be written.
local clocks, absent = {}, {}
for p = 1, partitions do clocks[p] = KEYS[(p - 1) * WIDTH + 1] end
local told = redis.call('MGET', unpack(clocks))
for p = 1, partitions do
  if not told[p] then absent[#absent + 1] = clocks[p] end
end
-- MGET calls a key of another type absent.
if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then
  return redis.error_reply('WRONGTYPE the clock of a partition is no text')
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local upto = whole(now)
local function is_time(last, every) return now - last >= tonumber(every) or now < last end

local standing = 0
if max > 0 then
  local keys = {}
  for k = 1, #KEYS, WIDTH do keys[#keys + 1], keys[#keys + 2] = KEYS[k + 3], KEYS[k + 5] end
  standing = redis.call('EXISTS', unpack(keys))
end

-- The heads of a partition's queues; in `empty` those that are listed and have none.
local function heads_of(k, p)
  local heads, empty = {}, {}
  for _, task_type in ipairs(ask('SRANDMEMBER', KEYS[k + 5], ARGV[5])) do
    local key = ARGV[10 + 2 * p] .. task_type
    local first = ask('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] then
      heads[#heads + 1], heads[#heads + 2], heads[#heads + 3] = task_type, first[2], ask('ZCARD', key)
    else
      empty[#empty + 1] = task_type
    end
  end
  return heads, empty
end

local found = {}
local claims_left, sweep_left = tonumber(ARGV[4]), tonumber(ARGV[9])
for p = 1, partitions do
  local k = (p - 1) * WIDTH + 1
  local f = { due = false, heads = {}, empty = {}, claims = {}, expired = {}, dead = {} }
  local lease, wall, retained, swept = string.match(told[p] or '', '^(%d+) (%d+) (%d+) (%d+)$')
  if told[p] and not lease then return redis.error_reply('WRONGTYPE the clock of a partition cannot be read') end
  f.retained, f.swept = tonumber(retained or 0), tonumber(swept or now)
  f.lease = tonumber(lease or 0)
  if wall then f.lease = f.lease + math.max(0, math.min(now - tonumber(wall), tonumber(ARGV[2]))) end
  if max > 0 then
    f.first = ask('ZRANGE', KEYS[k + 1], 0, 0, 'WITHSCORES')
    f.due = f.first[1] and tonumber(f.first[2]) <= now
    if standing > 0 then
      f.heads, f.empty = heads_of(k, p)
      f.claims = ask('ZRANGEBYSCORE', KEYS[k + 3], '-inf', upto, 'LIMIT', 0, claims_left)
      claims_left = claims_left - #f.claims
      if #f.claims > 0 then ask('HLEN', KEYS[k + 4]) end
      for _, claim in ipairs(f.claims) do
        ask('ZCARD', ARGV[10 + 2 * p] .. string.sub(claim, 1, string.find(claim, '\0', 1, true) - 1))
      end
    end
    if is_time(f.retained, ARGV[6]) then
      f.expired = ask('ZRANGEBYSCORE', KEYS[k + 2], '-inf', upto, 'LIMIT', 0, max)
      if #f.expired < max then f.retained = now end
    end
    if is_time(f.swept, ARGV[7]) then
      f.dead = ask('ZRANGEBYSCORE', KEYS[k + 6], '-inf', whole(f.lease - tonumber(ARGV[8])), 'LIMIT', 0, sweep_left)
      if #f.dead > 0 then ask('HLEN', KEYS[k + 7]) end
      sweep_left = sweep_left - #f.dead
      if sweep_left > 0 then f.swept = now end
    end
  end
  found[p] = f
end
if failed then return failed end

-- 2. Write. Clocks first: a full Redis refuses that, before anything was written.
local mset = { 'MSET' }
for p = 1, partitions do
  local f = found[p]
  mset[2 * p] = clocks[p]
  mset[2 * p + 1] = string.format('%.0f %.0f %.0f %.0f', f.lease, now, f.retained, f.swept)
end
local put = redis.pcall(unpack(mset))
-- A full Redis: clocks stand, nothing is moved or returned. What is to be deleted is told all the same, and again by the
-- next tick, since that is what makes room.
local full = put.err and string.find(put.err, 'OOM', 1, true)
if put.err and not full then return put end
if full then
  local reply = { upto }
  for p = 1, partitions do
    local f = found[p]
    reply[p + 1] = { whole(f.lease), 0, '', {}, f.expired, f.heads }
  end
  return reply
end

local later = whole(now + tonumber(ARGV[3]))
local function move(key, runs)
  for from = 1, #runs, 500 do
    local zadd = { 'ZADD', key }
    for j = from, math.min(from + 499, #runs) do
      zadd[#zadd + 1], zadd[#zadd + 2] = later, runs[j]
    end
    redis.call(unpack(zadd))
  end
end

local reply = { upto }
for p = 1, partitions do
  local k, f = (p - 1) * WIDTH + 1, found[p]
  if #f.empty > 0 then redis.call('SREM', KEYS[k + 5], unpack(f.empty)) end
  for _, claim in ipairs(f.claims) do
    local cut = string.find(claim, '\0', 1, true)
    local task_type, entry = string.sub(claim, 1, cut - 1), string.sub(claim, cut + 1)
    local place = redis.call('HGET', KEYS[k + 4], claim)
    redis.call('ZREM', KEYS[k + 3], claim)
    redis.call('HDEL', KEYS[k + 4], claim)
    if place then
      redis.call('ZADD', ARGV[10 + 2 * p] .. task_type, place, entry)
      if redis.call('SADD', KEYS[k + 5], task_type) == 1 then
        redis.call('PUBLISH', ARGV[10], ARGV[9 + 2 * p] .. ' ' .. task_type)
      end
    end
  end
  if #f.claims > 0 then f.heads = heads_of(k, p) end
  local due, next_one = {}, f.first and f.first[2] or ''
  if f.due then
    due = redis.call('ZRANGEBYSCORE', KEYS[k + 1], '-inf', upto, 'LIMIT', 0, max)
    move(KEYS[k + 1], due)
    next_one = redis.call('ZRANGE', KEYS[k + 1], 0, 0, 'WITHSCORES')[2]
  end
  move(KEYS[k + 2], f.expired)
  for from = 1, #f.dead, 500 do
    local zrem, hdel = { 'ZREM', KEYS[k + 6] }, { 'HDEL', KEYS[k + 7] }
    for j = from, math.min(from + 499, #f.dead) do
      zrem[#zrem + 1] = f.dead[j]
      hdel[#hdel + 1] = string.match(f.dead[j], '^(.*) %d+$')
    end
    redis.call(unpack(zrem))
    redis.call(unpack(hdel))
  end
  reply[p + 1] = { whole(f.lease), #f.claims, next_one, due, f.expired, f.heads }
end
return reply
