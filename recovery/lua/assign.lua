-- Give a request its next attempt: compare-and-set on (request, attempt), so that a worker and a gateway never both win.
-- KEYS  1 request hash
-- ARGV  1 attempt that ended  2 node  3 epoch  4 by whom
-- reply {"assigned", attempt, node, epoch} | {"taken", attempt, node, epoch} (what stands there) | {"gone"}
local current = redis.call('HGET', KEYS[1], 'attempt')
if not current then return {'gone'} end
if tonumber(current) ~= tonumber(ARGV[1]) then
  local standing = redis.call('HMGET', KEYS[1], 'node', 'epoch')
  return {'taken', current, standing[1] or '', standing[2] or '0'}
end
local attempt = tostring(tonumber(current) + 1)
redis.call('HSET', KEYS[1], 'attempt', attempt, 'node', ARGV[2], 'epoch', ARGV[3], 'assigned_by', ARGV[4])
return {'assigned', attempt, ARGV[2], ARGV[3]}
