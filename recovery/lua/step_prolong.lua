-- Prolong the lease on a step under way: its worker lives. Refused when the job ended or another worker took over.
-- KEYS  1 job hash
-- ARGV  1 step  2 attempt  3 holder  4 lease, ms
-- reply 1 prolonged | 0 the lease was lost
local state = redis.call('HGET', KEYS[1], 'state')
local raw = redis.call('HGET', KEYS[1], 'step:' .. ARGV[1])
if not raw or (state ~= 'queued' and state ~= 'running') then return 0 end
local step = cjson.decode(raw)
if step.state ~= 'running' or step.attempts ~= tonumber(ARGV[2]) or step.holder ~= ARGV[3] then return 0 end
local time = redis.call('TIME')
step.lease_ms = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], cjson.encode(step))
return 1
