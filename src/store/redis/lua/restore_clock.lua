-- Sets the clock of a partition that is being restored.
--
-- KEYS  1 clock
-- ARGV  1 lease clock, µs
-- Returns  1, or 0 if a server has set it

local clock = redis.pcall('GET', KEYS[1])
if type(clock) == 'table' then return clock end
if clock then
  -- As this script leaves it: no server has looked at retention yet.
  local lease, wall, retained, swept = string.match(clock, '^(%d+) (%d+) (%d+) (%d+)$')
  return (lease == ARGV[1] and retained == '0' and wall == swept) and 1 or 0
end
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. now .. ' 0 ' .. now)
return 1
