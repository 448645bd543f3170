-- Renew a sentinel's membership, drop those that lapsed, and tell who is left.
-- KEYS  1 sorted set sentinel → end of its membership, ms
-- ARGV  1 sentinel  2 for how long, ms (0: it leaves, and only looks)
-- reply {now, ms, "1" if it was a member before | "0", end of the first membership, ms ("0": none), sentinel, …}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local was = redis.call('ZSCORE', KEYS[1], ARGV[1]) and '1' or '0'
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
local first = '0'
local reply = {}
local members = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #members, 2 do
  if members[i] ~= ARGV[1] and first == '0' then first = members[i + 1] end
  reply[#reply + 1] = members[i]
end
return {string.format('%d', now), was, string.format('%d', tonumber(first)), unpack(reply)}
