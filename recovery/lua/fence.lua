-- Fence (node, epoch): from now on whatever that epoch says or writes is refused. Repeating it is harmless.
-- KEYS  1 epoch  2 lease  3 node hash
-- ARGV  1 epoch to fence  2 job  3 now, ms (for the record only)
-- reply {"fenced", new epoch} | {"stale", current epoch}
local epoch = tonumber(redis.call('GET', KEYS[1]) or '0')
local old = tonumber(ARGV[1])
-- Epochs come from here alone: one above ours means that Redis lost writes.
if old > epoch then epoch = old end
if epoch == old + 1 and redis.call('HGET', KEYS[3], 'fenced_by') == ARGV[2] then
  return {'fenced', tostring(epoch)}
end
if epoch ~= old then return {'stale', tostring(epoch)} end
epoch = epoch + 1
redis.call('SET', KEYS[1], epoch)
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[3], 'state', 'RECOVERING', 'weight', '0', 'epoch', epoch,
  'fenced_by', ARGV[2], 'fenced_ms', ARGV[3],
  'why', 'job ' .. ARGV[2] .. ': fenced epoch ' .. string.format('%d', old))
return {'fenced', tostring(epoch)}
