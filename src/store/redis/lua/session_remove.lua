-- Removes a session if it has this epoch.
--
-- KEYS  1 session (see session_put.lua)
-- ARGV  1 epoch
-- Returns  1, or 0 if it was gone or has another epoch

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
