-- Write fields of a node's hash under its epoch; refused when the epoch is not current.
-- KEYS  1 epoch  2 node hash
-- ARGV  1 epoch  2 only if the state is one of these, comma-separated ("" for any)  3.. field, value, …
-- reply {"ok", epoch} | {"stale", current epoch} | {"state", current state}
local epoch = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) ~= epoch then return {'stale', tostring(epoch)} end
if ARGV[2] ~= '' then
  local state = redis.call('HGET', KEYS[2], 'state') or ''
  if not string.find(',' .. ARGV[2] .. ',', ',' .. state .. ',', 1, true) then return {'state', state} end
end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[2], 'epoch', epoch)
return {'ok', tostring(epoch)}
