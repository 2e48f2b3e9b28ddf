-- Creates or replaces a session if its epoch is the expected one.
--
-- KEYS  1 session (hash: "epoch", "label", "owner" 16 B, "deadline" µs on the lease clock)   2 clock of the partition
-- ARGV  1 expected epoch ("" = must not exist)   2 epoch   3 label   4 owner   5 lease, µs
--       6 how long the record outlives the lease, ms   7 the most the lease clock goes on between ticks, µs
-- Returns  1, or 0 if the epoch differs

local clock = redis.pcall('HMGET', KEYS[2], 'lease', 'wall')
if clock.err then return clock end
local epoch = redis.pcall('HGET', KEYS[1], 'epoch')
if type(epoch) == 'table' then return epoch end
if (epoch or '') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease = tonumber(clock[1] or 0)
if clock[2] then lease = lease + math.max(0, math.min(now - tonumber(clock[2]), tonumber(ARGV[7]))) end
local deadline = string.format('%.0f', lease + tonumber(ARGV[5]))
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'label', ARGV[3], 'owner', ARGV[4], 'deadline', deadline)
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(tonumber(ARGV[5]) / 1000) + tonumber(ARGV[6])))
return 1
