-- Stores a document as the version after the newest, unless the newest equals it byte for byte.
--
-- KEYS  1 names: zset by creation of the newest version, µs   2 newest versions: hash by name
--       3 documents of this workflow: hash, version → document, "t" .. version → created µs
-- ARGV  1 name   2 document
-- Returns  { newest version now, created µs, 1 if this call made it }

for k, command in ipairs({ 'ZCARD', 'HLEN', 'HLEN' }) do
  local r = redis.pcall(command, KEYS[k])
  if type(r) == 'table' then return r end
end
local version = redis.call('HGET', KEYS[2], ARGV[1])
if version and redis.call('HGET', KEYS[3], version) == ARGV[2] then
  local created = redis.call('HGET', KEYS[3], 't' .. version)
  -- Stores of the first days have names of score 0.
  redis.call('ZADD', KEYS[1], created, ARGV[1])
  return { version, created, 0 }
end
version = string.format('%d', tonumber(version or 0) + 1)
local time = redis.call('TIME')
local created = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
redis.call('HSET', KEYS[3], version, ARGV[2], 't' .. version, created)
redis.call('HSET', KEYS[2], ARGV[1], version)
redis.call('ZADD', KEYS[1], created, ARGV[1])
return { version, created, 1 }
