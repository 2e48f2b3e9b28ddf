-- Moves the first entries of ready queues to the claimed set.
--
-- KEYS  per queue: ready zset, set of non-empty types, claimed zset, hash of claimed places
-- ARGV  1 how long a claim lasts, µs   then per queue: type, how many at most
-- Returns  per queue: { entry, score, entry, score, … } lowest score first
-- Bounded by the sum of the maxima.

local span = tonumber(ARGV[1])
for k = 1, #KEYS, 4 do
  for offset, command in ipairs({ 'ZCARD', 'SCARD', 'ZCARD', 'HLEN' }) do
    local r = redis.pcall(command, KEYS[k + offset - 1])
    if type(r) == 'table' then return r end
  end
end

local time = redis.call('TIME')
local expiry = string.format('%.0f', math.min(tonumber(time[1]) * 1000000 + tonumber(time[2]) + span, 2 ^ 53 - 1))
local reply = {}
for k = 1, #KEYS, 4 do
  local q = (k - 1) / 4
  local task_type, left = ARGV[2 + 2 * q], tonumber(ARGV[3 + 2 * q])
  local taken = {}
  while left > 0 do
    local page = redis.call('ZRANGE', KEYS[k], 0, math.min(left, 500) - 1, 'WITHSCORES')
    if #page == 0 then break end
    local zrem, zadd, hset = { 'ZREM', KEYS[k] }, { 'ZADD', KEYS[k + 2] }, { 'HSET', KEYS[k + 3] }
    for j = 1, #page, 2 do
      local claim = task_type .. '\0' .. page[j]
      zrem[#zrem + 1] = page[j]
      zadd[#zadd + 1], zadd[#zadd + 2] = expiry, claim
      hset[#hset + 1], hset[#hset + 2] = claim, page[j + 1]
      taken[#taken + 1], taken[#taken + 2] = page[j], page[j + 1]
    end
    redis.call(unpack(zrem))
    redis.call(unpack(zadd))
    redis.call(unpack(hset))
    left = left - #page / 2
  end
  if #taken > 0 and redis.call('EXISTS', KEYS[k]) == 0 then redis.call('SREM', KEYS[k + 1], task_type) end
  reply[#reply + 1] = taken
end
return reply
