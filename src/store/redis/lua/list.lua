-- What stands in an index by time (runs of one partition, or workflows), newest or oldest first, behind (created, name).
--
-- KEYS  1 index: zset of names by creation, µs   2 optional: hash by name
-- ARGV  1 created ("" = from the first)   2 name   3 how many at most   4 "newest" or "oldest" first
-- Returns  { name, created, … }, with the hash { name, created, value, … }. Writes nothing.
-- Bounded by its arguments: names created at the same instant are searched by halves.

local newest = ARGV[4] == 'newest'
local range = newest and 'ZREVRANGE' or 'ZRANGE'
local from = 0
if ARGV[1] ~= '' then
  -- Whether a stands behind b. Byte by byte, since Lua compares text by the locale.
  local function behind(a, b)
    for j = 1, math.min(#a, #b) do
      local x, y = string.byte(a, j), string.byte(b, j)
      if x ~= y then return (x < y) == newest end
    end
    return #a ~= #b and (#a < #b) == newest
  end
  local low
  if newest then
    low = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
  else
    low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
  end
  local high = low + redis.call('ZCOUNT', KEYS[1], ARGV[1], ARGV[1])
  -- The first rank in low … high whose name stands behind ours.
  while low < high do
    local middle = math.floor((low + high) / 2)
    if behind(redis.call(range, KEYS[1], middle, middle)[1], ARGV[2]) then
      high = middle
    else
      low = middle + 1
    end
  end
  from = low
end
if tonumber(ARGV[3]) == 0 then return {} end
local found = redis.call(range, KEYS[1], from, from + tonumber(ARGV[3]) - 1, 'WITHSCORES')
if not KEYS[2] then return found end
local reply = {}
for j = 1, #found, 2 do
  reply[#reply + 1], reply[#reply + 2] = found[j], found[j + 1]
  reply[#reply + 1] = redis.call('HGET', KEYS[2], found[j])
end
return reply
