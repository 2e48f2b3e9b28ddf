-- Reads sessions of one partition.
--
-- KEYS  1 clock of the partition   2 hash of sessions   3 leases (see session_put.lua)
-- ARGV  1 the most the lease clock goes on between ticks, µs   2 how long a session outlives its lease, µs
--       then sessions, at least one
-- Returns  { lease clock µs, then per session { value of the hash, deadline µs }, or {} if there is none }
-- Bounded by its arguments. Writes nothing.

local clock = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease, wall = string.match(clock or '', '^(%d+) (%d+) ')
lease = tonumber(lease or 0)
if wall then lease = lease + math.max(0, math.min(now - tonumber(wall), tonumber(ARGV[1]))) end
local reply = { string.format('%.0f', lease) }
for from = 3, #ARGV, 1000 do
  local upto = math.min(from + 999, #ARGV)
  local values = redis.call('HMGET', KEYS[2], unpack(ARGV, from, upto))
  local leases = {}
  for n, value in ipairs(values) do
    leases[n] = ARGV[from + n - 1] .. ' ' .. (value and string.match(value, '^%d+') or '')
  end
  local deadlines = redis.call('ZMSCORE', KEYS[3], unpack(leases))
  for n, value in ipairs(values) do
    local deadline = deadlines[n]
    local there = value and deadline and tonumber(deadline) + tonumber(ARGV[2]) > lease
    reply[#reply + 1] = there and { value, deadline } or {}
  end
end
return reply
