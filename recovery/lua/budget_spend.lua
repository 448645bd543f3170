-- Spend one of `limit` tries within a sliding period; the same try (its id) is counted once.
-- KEYS  1 sorted set try → time, ms
-- ARGV  1 try id  2 limit  3 period, ms
-- reply 1 spent (or already spent) | 0 budget is used up
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[3]))
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 1 end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
