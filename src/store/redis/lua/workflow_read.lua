-- Reads one version of a workflow, or the newest.
--
-- KEYS  1 newest versions   2 documents of this workflow      (see workflow_put.lua)
-- ARGV  1 name   2 version ("" = the newest)
-- Returns  { version, created µs, document }, or {} if there is none. Writes nothing.

local version = ARGV[2]
if version == '' then version = redis.call('HGET', KEYS[1], ARGV[1]) end
if not version then return {} end
local found = redis.call('HMGET', KEYS[2], 't' .. version, version)
if not found[2] then return {} end
return { version, found[1], found[2] }
