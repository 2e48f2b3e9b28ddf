-- Removes a session if it has this epoch.
--
-- KEYS  1 hash of sessions   2 leases (see session_put.lua)
-- ARGV  1 session   2 epoch
-- Returns  1, or 0 if it was gone or has another epoch

local lease = ARGV[1] .. ' ' .. ARGV[2]
local there = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
if type(there) == 'table' then return there end
local deadline = redis.pcall('ZSCORE', KEYS[2], lease)
if type(deadline) == 'table' then return deadline end
if not deadline then return 0 end
redis.call('ZREM', KEYS[2], lease)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
