-- Runs of one partition, oldest first, strictly after (created, name).
--
-- KEYS  1 index: zset of runs by creation, µs
-- ARGV  1 created ("" = from the oldest)   2 run   3 how many at most
-- Returns  { run, created, … }. Writes nothing.
-- Bounded by its arguments: runs created at the same instant are searched by halves.

local from = 0
if ARGV[1] ~= '' then
  -- Byte by byte, since Lua compares text by the locale.
  local function above(a, b)
    for j = 1, math.min(#a, #b) do
      local x, y = string.byte(a, j), string.byte(b, j)
      if x ~= y then return x > y end
    end
    return #a > #b
  end
  local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
  local high = low + redis.call('ZCOUNT', KEYS[1], ARGV[1], ARGV[1])
  -- The first rank in low … high whose run is above ours.
  while low < high do
    local middle = math.floor((low + high) / 2)
    if above(redis.call('ZRANGE', KEYS[1], middle, middle)[1], ARGV[2]) then
      high = middle
    else
      low = middle + 1
    end
  end
  from = low
end
if tonumber(ARGV[3]) == 0 then return {} end
return redis.call('ZRANGE', KEYS[1], from, from + tonumber(ARGV[3]) - 1, 'WITHSCORES')
