-- Take the lease on a job's step: only a live job's step that nobody holds, whose needs are met and whose pause is over.
-- KEYS  1 job hash  2 audit stream
-- ARGV  1 step  2 holder, unique per call  3 lease, ms  4 tries allowed  5 needed steps, comma-separated
-- reply {"begun", attempt} | {"done"} | {"held"} | {"early"} | {"spent", attempts} | {"closed", state of job or step}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'queued' and state ~= 'running' then return {'closed', state or 'missing'} end
local step = cjson.decode(redis.call('HGET', KEYS[1], 'step:' .. ARGV[1]) or '{"state":"pending","attempts":0}')
if step.state == 'succeeded' or step.state == 'skipped' then return {'done'} end
if step.state == 'failed' then return {'closed', 'failed'} end
if (step.lease_ms or 0) > now then
  if step.state == 'pending' then return {'early'} end
  -- The same call, repeated because its reply was lost.
  if step.holder == ARGV[2] then return {'begun', tostring(step.attempts)} end
  return {'held'}
end
for need in string.gmatch(ARGV[5], '[^,]+') do
  local other = cjson.decode(redis.call('HGET', KEYS[1], 'step:' .. need) or '{"state":"pending"}')
  if other.state ~= 'succeeded' and other.state ~= 'skipped' then return {'early'} end
end
if step.attempts >= tonumber(ARGV[4]) then
  step.state = 'failed'
  step.ended_ms = now
  step.error = 'all ' .. ARGV[4] .. ' tries are used up; the last one: ' .. (step.error or 'its worker was lost')
  redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], cjson.encode(step), 'updated_ms', now)
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', 5000, '*', 'entry', cjson.encode({
    event = 'step.failed', step = ARGV[1], attempt = step.attempts, error = step.error, at_ms = now }))
  return {'spent', tostring(step.attempts)}
end
step.attempts = step.attempts + 1
step.state = 'running'
step.holder = ARGV[2]
step.lease_ms = now + tonumber(ARGV[3])
step.began_ms = step.began_ms or now
redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], cjson.encode(step), 'state', 'running', 'updated_ms', now)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 5000, '*', 'entry', cjson.encode({
  event = 'step.begun', step = ARGV[1], attempt = step.attempts, by = ARGV[2], at_ms = now }))
return {'begun', tostring(step.attempts)}
