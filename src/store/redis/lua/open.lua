-- Initialises an empty store, or tells what it was initialised with.
--
-- KEYS  1 meta: hash of "layout", "partitions", "epoch"
-- ARGV  1 layout version   2 number of partitions   3 epoch: names this initialisation
-- Returns  { layout, partitions, epoch, 1 if this call initialised it }

local meta = redis.pcall('HMGET', KEYS[1], 'layout', 'partitions', 'epoch')
if meta.err then return meta end
if meta[1] then return { meta[1], meta[2], meta[3], 0 } end
redis.call('HSET', KEYS[1], 'layout', ARGV[1], 'partitions', ARGV[2], 'epoch', ARGV[3])
return { ARGV[1], ARGV[2], ARGV[3], 1 }
