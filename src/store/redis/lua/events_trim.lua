-- Trims the event stream of one partition up to and with an entry.
--
-- KEYS  1 stream   2 mark of what was trimmed
-- ARGV  1 position of the entry, ms-seq   2 of the one that may follow it
-- Returns  how many entries went
-- Bounded by what stands before the entry: whoever asks has read it.

local marked = redis.pcall('STRLEN', KEYS[2])
if type(marked) == 'table' then return marked end
local gone = redis.pcall('XTRIM', KEYS[1], 'MINID', ARGV[2])
if type(gone) == 'table' then return gone end
-- None: it was trimmed further before. The stream keeps its key, and with it where it stood.
if gone > 0 then redis.call('SET', KEYS[2], ARGV[1]) end
return gone
