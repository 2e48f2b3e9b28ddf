-- Stores a version of a workflow as it is; the newest is the highest that was put.
--
-- KEYS  1 names   2 newest versions   3 documents of this workflow      (see workflow_put.lua)
-- ARGV  1 name   2 version   3 created µs   4 document
-- Returns  1

for k, command in ipairs({ 'ZCARD', 'HLEN', 'HLEN' }) do
  local r = redis.pcall(command, KEYS[k])
  if type(r) == 'table' then return r end
end
local newest = redis.call('HGET', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4], 't' .. ARGV[2], ARGV[3])
if not newest or tonumber(newest) <= tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
return 1
