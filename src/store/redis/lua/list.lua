-- What stands in an index by time (runs of one partition, or workflows), newest first, strictly before (created, name).
--
-- KEYS  1 index: zset of names by creation, µs   2 optional: hash by name
-- ARGV  1 created ("" = from the newest)   2 name   3 how many at most
-- Returns  { name, created, … }, with the hash { name, created, value, … }. Writes nothing.
-- Bounded by its arguments: names created at the same instant are searched by halves.

local from = 0
if ARGV[1] ~= '' then
  -- Byte by byte, since Lua compares text by the locale.
  local function below(a, b)
    for j = 1, math.min(#a, #b) do
      local x, y = string.byte(a, j), string.byte(b, j)
      if x ~= y then return x < y end
    end
    return #a < #b
  end
  local low = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
  local high = low + redis.call('ZCOUNT', KEYS[1], ARGV[1], ARGV[1])
  -- The first rank, from the newest, in low … high whose run is below ours.
  while low < high do
    local middle = math.floor((low + high) / 2)
    if below(redis.call('ZREVRANGE', KEYS[1], middle, middle)[1], ARGV[2]) then
      high = middle
    else
      low = middle + 1
    end
  end
  from = low
end
if tonumber(ARGV[3]) == 0 then return {} end
local found = redis.call('ZREVRANGE', KEYS[1], from, from + tonumber(ARGV[3]) - 1, 'WITHSCORES')
if not KEYS[2] then return found end
local reply = {}
for j = 1, #found, 2 do
  reply[#reply + 1], reply[#reply + 2] = found[j], found[j + 1]
  reply[#reply + 1] = redis.call('HGET', KEYS[2], found[j])
end
return reply
