-- End a live job, once.
-- KEYS  1 job hash  2 audit stream
-- ARGV  1 final state  2 reason
-- reply 1 ended | 0 it had ended before
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'queued' and state ~= 'running' then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[1], 'error', ARGV[2], 'updated_ms', now, 'ended_ms', now)
redis.call('XADD', KEYS[2], '*', 'entry', cjson.encode({
  event = 'job.' .. ARGV[1], error = ARGV[2], at_ms = now }))
return 1
