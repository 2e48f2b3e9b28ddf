-- Names and newest versions, by name.
--
-- KEYS  1 names   2 newest versions      (see workflow_put.lua)
-- ARGV  1 where to begin, as ZRANGEBYLEX takes it   2 how many at most
-- Returns  { name, version, … }. Bounded by its arguments. Writes nothing.

local reply = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  reply[#reply + 1], reply[#reply + 2] = name, redis.call('HGET', KEYS[2], name)
end
return reply
