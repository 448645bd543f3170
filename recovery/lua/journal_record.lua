-- Write delivered token ids at their offset; the watermark never goes back, a request that ended stays gone.
-- KEYS  1 request hash  2 tokens
-- ARGV  1 offset, tokens  2 ids, packed uint32  3 time to live, s
-- reply 1 written | 0 no such request
if redis.call('HEXISTS', KEYS[1], 'attempt') == 0 then return 0 end
redis.call('SETRANGE', KEYS[2], tonumber(ARGV[1]) * 4, ARGV[2])
local reached = tonumber(ARGV[1]) + #ARGV[2] / 4
if reached > tonumber(redis.call('HGET', KEYS[1], 'delivered') or '0') then
  redis.call('HSET', KEYS[1], 'delivered', string.format('%d', reached))
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
