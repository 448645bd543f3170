-- Read a node's lease, without a fence in between that would make it look expired.
-- KEYS  1 lease  2 epoch  3 node hash
-- reply {time left, ms (≤ 0: it is not there), epoch, state}
return {
  redis.call('PTTL', KEYS[1]),
  tonumber(redis.call('GET', KEYS[2]) or '0'),
  redis.call('HGET', KEYS[3], 'state') or '',
}
