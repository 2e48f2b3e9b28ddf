-- One tick of one partition: its lease clock goes on, due runs are told and moved ahead, expired claims go
-- back to their queues, heads of the non-empty queues are told.
--
-- KEYS  1 clock (hash: "lease" µs, "wall" µs)   2 wake-ups   3 retention   4 claimed zset
--       5 hash of claimed places   6 set of non-empty types
-- ARGV  1 runs told at most, of each kind   2 the most the lease clock goes on, µs   3 how far due runs move, µs
--       4 claims returned at most   5 what the key of a ready zset begins with, its type follows
--       6 channel of hints   7 the partition   8 queues told at most
-- Returns  { now µs, lease clock µs, claims returned, { due run, … }, { expired run, … }, { type, score, depth, … } }
-- Bounded by its arguments. The keys of ready zsets are of the same slot as KEYS.

for k, command in ipairs({ 'HLEN', 'ZCARD', 'ZCARD', 'ZCARD', 'HLEN', 'SCARD' }) do
  local r = redis.pcall(command, KEYS[k])
  if type(r) == 'table' then return r end
end

local function whole(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local clock = redis.call('HMGET', KEYS[1], 'lease', 'wall')
local lease = tonumber(clock[1] or 0)
if clock[2] then lease = lease + math.max(0, math.min(now - tonumber(clock[2]), tonumber(ARGV[2]))) end
redis.call('HSET', KEYS[1], 'lease', whole(lease), 'wall', whole(now))

local function due(key)
  local runs = redis.call('ZRANGEBYSCORE', key, '-inf', whole(now), 'LIMIT', 0, ARGV[1])
  local later = whole(now + tonumber(ARGV[3]))
  for from = 1, #runs, 500 do
    local zadd = { 'ZADD', key }
    for j = from, math.min(from + 499, #runs) do
      zadd[#zadd + 1], zadd[#zadd + 2] = later, runs[j]
    end
    redis.call(unpack(zadd))
  end
  return runs
end

local expired = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', whole(now), 'LIMIT', 0, ARGV[4])
for _, claim in ipairs(expired) do
  local cut = string.find(claim, '\0', 1, true)
  local task_type, entry = string.sub(claim, 1, cut - 1), string.sub(claim, cut + 1)
  local place = redis.call('HGET', KEYS[5], claim)
  redis.call('ZREM', KEYS[4], claim)
  redis.call('HDEL', KEYS[5], claim)
  if place then
    redis.call('ZADD', ARGV[5] .. task_type, place, entry)
    if redis.call('SADD', KEYS[6], task_type) == 1 then
      redis.call('PUBLISH', ARGV[6], ARGV[7] .. ' ' .. task_type)
    end
  end
end

local heads = {}
for _, task_type in ipairs(redis.call('SRANDMEMBER', KEYS[6], ARGV[8])) do
  local key = ARGV[5] .. task_type
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[1] then
    heads[#heads + 1], heads[#heads + 2], heads[#heads + 3] = task_type, first[2], redis.call('ZCARD', key)
  else
    redis.call('SREM', KEYS[6], task_type)
  end
end
return { whole(now), whole(lease), #expired, due(KEYS[2]), due(KEYS[3]), heads }
