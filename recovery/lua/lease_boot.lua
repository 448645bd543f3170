-- An agent starts: give it the node's lease, and a new epoch for a new engine unless a recovery is under way.
-- KEYS  1 epoch  2 lease  3 node hash
-- ARGV  1 holder  2 floor (highest epoch the agent has on disk)  3 lease timeout, ms  4 running epoch (0: no engine alive)
-- reply {"held", holder of the live lease} | {"fenced", epoch} (wait for commands)
--       | {"adopt", epoch} (the running engine is current) | {"start", epoch} (launch under the new epoch)
local epoch = tonumber(redis.call('GET', KEYS[1]) or '0')
local floor = tonumber(ARGV[2])
local lease = redis.call('GET', KEYS[2])
if lease then
  local holder = string.match(lease, '^(.-)|')
  if holder ~= ARGV[1] then return {'held', holder} end
end
-- Redis may have lost writes: an epoch never goes backwards.
if floor > epoch then
  epoch = floor
  redis.call('SET', KEYS[1], epoch)
end
local state = redis.call('HGET', KEYS[3], 'state')
local fenced = redis.call('HGET', KEYS[3], 'fenced_by')
local verdict
local held = {RECOVERING = 1, WARMING = 1, QUARANTINED = 1, NEEDS_OPERATOR = 1}
if fenced and fenced ~= '' and held[state] then
  verdict = 'fenced'
elseif tonumber(ARGV[4]) == epoch and epoch > 0 and state ~= 'DEAD' then
  verdict = 'adopt'
else
  verdict = 'start'
  epoch = epoch + 1
  redis.call('SET', KEYS[1], epoch)
end
redis.call('SET', KEYS[2], ARGV[1] .. '|' .. epoch, 'PX', ARGV[3])
return {verdict, tostring(epoch)}
