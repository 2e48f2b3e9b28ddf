-- Settles claims on entries that were judged stale: drops each whose run is still what it was judged by,
-- returns the others to their queues.
--
-- KEYS  per entry: record, ready zset, set of non-empty types, claimed zset, hash of claimed places
-- ARGV  1 channel of hints   then per entry: partition, type, entry, prefix of 24 B ("" = there was no record)
-- Returns  how many were dropped
-- Bounded by its arguments.

for k = 1, #KEYS, 5 do
  for offset, command in ipairs({ 'STRLEN', 'ZCARD', 'SCARD', 'ZCARD', 'HLEN' }) do
    local r = redis.pcall(command, KEYS[k + offset - 1])
    if type(r) == 'table' then return r end
  end
end

local dropped = 0
for k = 1, #KEYS, 5 do
  local a = 1 + (k - 1) / 5 * 4
  local partition, task_type, entry, prefix = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local ready, types, claimed, places = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local claim = task_type .. '\0' .. entry
  local place = redis.call('HGET', places, claim)
  redis.call('ZREM', claimed, claim)
  redis.call('HDEL', places, claim)
  if redis.call('GETRANGE', KEYS[k], 0, 23) == prefix then
    dropped = dropped + 1
    if redis.call('ZREM', ready, entry) == 1 and redis.call('EXISTS', ready) == 0 then
      redis.call('SREM', types, task_type)
    end
  elseif place then
    redis.call('ZADD', ready, place, entry)
    if redis.call('SADD', types, task_type) == 1 then
      redis.call('PUBLISH', ARGV[1], partition .. ' ' .. task_type)
    end
  end
end
return dropped
