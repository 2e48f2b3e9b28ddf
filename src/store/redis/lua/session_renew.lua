-- Renews sessions of some partitions: two commands for each partition, however many sessions.
--
-- KEYS  per partition: its clock, its leases (see session_put.lua)
-- ARGV  1 lease, µs   2 how long a session outlives its lease, µs   3 the most the lease clock goes on, µs
--       then per partition: how many (1 to 1,000), then "SESSION EPOCH" of each
-- Returns  a text of "1" and "0", one per session in the order of ARGV: "0" if it is gone or has another epoch
-- Bounded by its arguments.

local partitions = #KEYS / 2
local clocks, absent = {}, {}
for p = 1, partitions do clocks[p] = KEYS[2 * p - 1] end
local told = redis.call('MGET', unpack(clocks))
for p = 1, partitions do
  if not told[p] then absent[#absent + 1] = clocks[p] end
end
-- MGET calls a key of another type absent.
if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then
  return redis.error_reply('WRONGTYPE the clock of a partition is no text')
end
local stand, at = {}, 4
for p = 1, partitions do
  local count = tonumber(ARGV[at])
  stand[p] = redis.pcall('ZMSCORE', KEYS[2 * p], unpack(ARGV, at + 1, at + count))
  if stand[p].err then return stand[p] end
  at = at + count + 1
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local marks = {}
at = 4
for p = 1, partitions do
  local lease, wall = string.match(told[p] or '', '^(%d+) (%d+) ')
  lease = tonumber(lease or 0)
  if wall then lease = lease + math.max(0, math.min(now - tonumber(wall), tonumber(ARGV[3]))) end
  local deadline = string.format('%.0f', lease + tonumber(ARGV[1]))
  local zadd = { 'ZADD', KEYS[2 * p] }
  for n, stands in ipairs(stand[p]) do
    local there = stands and tonumber(stands) + tonumber(ARGV[2]) > lease
    if there then zadd[#zadd + 1], zadd[#zadd + 2] = deadline, ARGV[at + n] end
    marks[#marks + 1] = there and '1' or '0'
  end
  if #zadd > 2 then redis.call(unpack(zadd)) end
  at = at + #stand[p] + 1
end
return table.concat(marks)
