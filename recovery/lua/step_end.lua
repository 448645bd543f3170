-- Write a step's outcome, if the caller still holds that attempt.
-- KEYS  1 job hash  2 audit stream
-- ARGV  1 step  2 attempt  3 state (succeeded, skipped, failed, pending: to be tried again)
--       4 outcome (JSON object)  5 error  6 "1": the attempt was never really made, give it back;
--       "2": the same, and the step's deadline starts anew  7 pause before the next attempt, ms
-- reply 1 written | 0 the lease was lost
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local raw = redis.call('HGET', KEYS[1], 'step:' .. ARGV[1])
if not raw then return 0 end
local step = cjson.decode(raw)
if step.state ~= 'running' or step.attempts ~= tonumber(ARGV[2]) then return 0 end
step.state = ARGV[3]
step.lease_ms = 0
if ARGV[3] == 'pending' then step.lease_ms = now + tonumber(ARGV[7]) end
step.ended_ms = now
-- Kept as text: decoded and encoded again, an empty list would come back as an object.
step.outcome = ARGV[4]
step.error = nil
if ARGV[5] ~= '' then step.error = ARGV[5] end
if ARGV[6] ~= '0' then step.attempts = step.attempts - 1 end
if ARGV[6] == '2' then step.began_ms = nil end
redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], cjson.encode(step), 'updated_ms', now)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 5000, '*', 'entry', cjson.encode({
  event = 'step.' .. ARGV[3], step = ARGV[1], attempt = tonumber(ARGV[2]), outcome = ARGV[4],
  error = ARGV[5], at_ms = now }))
return 1
