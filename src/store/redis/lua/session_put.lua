-- Creates or replaces a session if its epoch is the expected one.
--
-- KEYS  1 clock of the partition (see tick.lua)   2 hash of sessions: SESSION → "EPOCH " ‖ owner 16 B ‖ label
--       3 leases (zset: "SESSION EPOCH" by deadline, µs on the lease clock; one for each session of the hash)
-- ARGV  1 session   2 expected epoch ("" = must not exist)   3 epoch   4 owner ‖ label   5 lease, µs
--       6 how long a session outlives its lease, µs   7 the most the lease clock goes on between ticks, µs
-- Returns  1, or 0 if the epoch differs

local clock = redis.pcall('GET', KEYS[1])
if type(clock) == 'table' then return clock end
local stands = redis.pcall('HGET', KEYS[2], ARGV[1])
if type(stands) == 'table' then return stands end
local old = stands and ARGV[1] .. ' ' .. string.match(stands, '^%d+')
local deadline = redis.pcall('ZSCORE', KEYS[3], old or ARGV[1])
if type(deadline) == 'table' then return deadline end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease, wall = string.match(clock or '', '^(%d+) (%d+) ')
lease = tonumber(lease or 0)
if wall then lease = lease + math.max(0, math.min(now - tonumber(wall), tonumber(ARGV[7]))) end
local gone = not deadline or tonumber(deadline) + tonumber(ARGV[6]) <= lease
if (gone and '' or string.match(stands, '^%d+')) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3] .. ' ' .. ARGV[4])
if old then redis.call('ZREM', KEYS[3], old) end
redis.call('ZADD', KEYS[3], string.format('%.0f', lease + tonumber(ARGV[5])), ARGV[1] .. ' ' .. ARGV[3])
return 1
