-- Take (or prolong) one of `limit` permits; permits of dead holders lapse.
-- KEYS  1 sorted set holder → expiry, ms
-- ARGV  1 holder  2 limit  3 permit time, ms
-- reply 1 taken | 0 all in use
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
  return 1
end
return 0
