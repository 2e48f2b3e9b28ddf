-- Removes a workflow with all its versions.
--
-- KEYS  1 names   2 newest versions   3 documents of this workflow      (see workflow_put.lua)
-- ARGV  1 name
-- Returns  1, or 0 if there was none

for k, command in ipairs({ 'ZCARD', 'HLEN', 'HLEN' }) do
  local r = redis.pcall(command, KEYS[k])
  if type(r) == 'table' then return r end
end
redis.call('UNLINK', KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
