-- Reads sessions of one partition.
--
-- KEYS  1 clock of the partition   then sessions (see session_put.lua)
-- ARGV  1 the most the lease clock goes on between ticks, µs
-- Returns  { lease clock µs, then per session { epoch, label, owner, deadline } of nil or text }
-- Bounded by its arguments. Writes nothing.

local clock = redis.call('HMGET', KEYS[1], 'lease', 'wall')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease = tonumber(clock[1] or 0)
if clock[2] then lease = lease + math.max(0, math.min(now - tonumber(clock[2]), tonumber(ARGV[1]))) end
local reply = { string.format('%.0f', lease) }
for s = 2, #KEYS do
  reply[s] = redis.call('HMGET', KEYS[s], 'epoch', 'label', 'owner', 'deadline')
end
return reply
