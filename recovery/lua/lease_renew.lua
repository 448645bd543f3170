-- Prolong an agent's lease, if its epoch is still the node's.
-- KEYS  1 epoch  2 lease
-- ARGV  1 holder  2 epoch  3 lease timeout, ms
-- reply {"ok", epoch} | {"stale", current epoch} | {"held", other holder}
local epoch = tonumber(redis.call('GET', KEYS[1]) or '0')
local mine = tonumber(ARGV[2])
if mine < epoch then return {'stale', tostring(epoch)} end
local lease = redis.call('GET', KEYS[2])
if lease then
  local holder = string.match(lease, '^(.-)|')
  if holder ~= ARGV[1] then return {'held', holder} end
end
-- A Redis that came back empty learns the epoch from the agent.
if mine > epoch then redis.call('SET', KEYS[1], mine) end
redis.call('SET', KEYS[2], ARGV[1] .. '|' .. ARGV[2], 'PX', ARGV[3])
return {'ok', ARGV[2]}
