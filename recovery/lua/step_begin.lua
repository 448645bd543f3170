-- Take the lease on a job's step: only a running job's step that nobody holds, whose needs are met.
-- KEYS  1 job hash  2 audit stream
-- ARGV  1 step  2 holder  3 lease, ms  4 tries allowed  5 needed steps, comma-separated
-- reply {"begun", attempt} | {"done"} | {"held"} | {"early"} | {"spent", attempts} | {"closed", job state}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'queued' and state ~= 'running' then return {'closed', state or 'missing'} end
local step = cjson.decode(redis.call('HGET', KEYS[1], 'step:' .. ARGV[1]) or '{"state":"pending","attempts":0}')
if step.state == 'succeeded' or step.state == 'skipped' then return {'done'} end
if step.state == 'running' and step.lease_ms > now then return {'held'} end
for need in string.gmatch(ARGV[5], '[^,]+') do
  local other = cjson.decode(redis.call('HGET', KEYS[1], 'step:' .. need) or '{"state":"pending"}')
  if other.state ~= 'succeeded' and other.state ~= 'skipped' then return {'early'} end
end
if step.attempts >= tonumber(ARGV[4]) then return {'spent', tostring(step.attempts)} end
step.attempts = step.attempts + 1
step.state = 'running'
step.holder = ARGV[2]
step.lease_ms = now + tonumber(ARGV[3])
step.began_ms = step.began_ms or now
step.error = nil
redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], cjson.encode(step), 'state', 'running', 'updated_ms', now)
redis.call('XADD', KEYS[2], '*', 'entry', cjson.encode({
  event = 'step.begun', step = ARGV[1], attempt = step.attempts, by = ARGV[2], at_ms = now }))
return {'begun', tostring(step.attempts)}
