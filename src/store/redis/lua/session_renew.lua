-- Renews sessions of one partition.
--
-- KEYS  1 clock of the partition   then sessions (see session_put.lua)
-- ARGV  1 lease, µs   2 how long a record outlives the lease, ms   3 the most the lease clock goes on, µs
--       then the epoch of each session
-- Returns  1 or 0 per session: 0 if it is gone or has another epoch
-- Bounded by its arguments.

local clock = redis.pcall('HMGET', KEYS[1], 'lease', 'wall')
if clock.err then return clock end
local epochs = {}
for s = 2, #KEYS do
  local epoch = redis.pcall('HGET', KEYS[s], 'epoch')
  if type(epoch) == 'table' then return epoch end
  epochs[s] = epoch
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease = tonumber(clock[1] or 0)
if clock[2] then lease = lease + math.max(0, math.min(now - tonumber(clock[2]), tonumber(ARGV[3]))) end
local deadline = string.format('%.0f', lease + tonumber(ARGV[1]))
local life = string.format('%.0f', math.ceil(tonumber(ARGV[1]) / 1000) + tonumber(ARGV[2]))
local reply = {}
for s = 2, #KEYS do
  local same = epochs[s] == ARGV[s + 2]
  if same then
    redis.call('HSET', KEYS[s], 'deadline', deadline)
    redis.call('PEXPIRE', KEYS[s], life)
  end
  reply[#reply + 1] = same and 1 or 0
end
return reply
