-- Create a job, or return the one that is there: one job per id, whoever asks first.
-- KEYS  1 job hash  2 audit stream
-- ARGV  1 audit entry (JSON)  2.. field, value, …
-- reply 1 created | 0 it was there
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[2], '*', 'entry', ARGV[1])
return 1
