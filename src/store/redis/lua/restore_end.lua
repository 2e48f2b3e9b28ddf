-- Ends a restore: gives the store the layout that servers know.
--
-- KEYS  1 meta: hash of "layout", "partitions", "epoch", "restore"
-- ARGV  1 layout while it is restored   2 layout from now on   3 file: what "restore" must be   4 0: only looks
-- Returns  1 it has ended   0 it has not, and may   -1 it was not begun with this file

local meta = redis.pcall('HMGET', KEYS[1], 'layout', 'restore')
if meta.err then return meta end
-- Said before, and the answer was lost.
if meta[1] == ARGV[2] and not meta[2] then return 1 end
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[3] then return -1 end
if ARGV[4] == '0' then return 0 end
redis.call('HSET', KEYS[1], 'layout', ARGV[2])
redis.call('HDEL', KEYS[1], 'restore')
return 1
