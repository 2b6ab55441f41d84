"""The Lua scripts. Each changes one record or one segment and is idempotent.

Node scripts use keys that share the hash tag `{nodes}`; segment scripts use one segment, so all of
them run on Redis Cluster.
"""

# KEYS epoch, counter; ARGV fresh epoch, first number
BEGIN_EPOCH = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  redis.call('SET', KEYS[2], ARGV[2])
end
return redis.call('GET', KEYS[1])
"""

# KEYS record, counter, names, voided; ARGV node, incarnation, root
# → {1, registration} or {0, 0}: this incarnation was replaced before and is void for ever.
REGISTER = """
local current = redis.call('HGET', KEYS[1], 'incarnation')
local void = redis.call('HGET', KEYS[1], 'void') or ' '
if string.find(void, ' ' .. ARGV[2] .. ' ', 1, true) then return {0, 0} end
if current and current ~= ARGV[2] then
  void = string.sub(' ' .. current .. void, 1, 1024)
end
local number = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'root', ARGV[3], 'registration', number,
  'number', number, 'seq', 0, 'is_complete', 0, 'void', void)
redis.call('SADD', KEYS[3], ARGV[1])
if current then redis.call('INCR', KEYS[4]) end
return {1, number}
"""

# KEYS writer keys; ARGV writer, lease in ms → 1 for each that this writer holds now
HOLD_WRITERS = """
local held = {}
for i, key in ipairs(KEYS) do
  local holder = redis.call('GET', key)
  if not holder or holder == ARGV[1] then
    redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    held[i] = 1
  else
    held[i] = 0
  end
end
return held
"""

# KEYS writer keys; ARGV writer
RELEASE_WRITERS = """
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1
"""

# KEYS record, counter, writer, voided; ARGV writer, incarnation → number, 0: not the writer
OPEN_SESSION = """
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[2] then return 0 end
local number = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'number', number, 'seq', 0, 'is_complete', 0)
redis.call('INCR', KEYS[4])
return number
"""

# KEYS record; ARGV number, seq → 0: the session is void
COMMIT = """
if redis.call('HGET', KEYS[1], 'number') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'seq', ARGV[2], 'is_complete', 1)
return 1
"""

# KEYS record, names, voided, writer; ARGV node, incarnation, registration
RETIRE = """
local now = redis.call('HMGET', KEYS[1], 'incarnation', 'registration')
if now[1] ~= ARGV[2] or now[2] ~= ARGV[3] then return 0 end
redis.call('DEL', KEYS[1], KEYS[4])
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('INCR', KEYS[3])
return 1
"""

# KEYS segment; ARGV replica (5 bytes), fields…
STORE = """
local number = string.sub(ARGV[1], 1, 4)
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  local kept = ''
  for at = 1, #value, 5 do
    if string.sub(value, at, at + 3) ~= number then
      kept = kept .. string.sub(value, at, at + 4)
    end
  end
  redis.call('HSET', KEYS[1], ARGV[i], kept .. ARGV[1])
end
return 1
"""

# KEYS segment; ARGV numbers (4 bytes each, packed), fields…
REMOVE = """
local void = {}
for at = 1, #ARGV[1], 4 do void[string.sub(ARGV[1], at, at + 3)] = true end
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value then
    local kept = ''
    for at = 1, #value, 5 do
      if not void[string.sub(value, at, at + 3)] then
        kept = kept .. string.sub(value, at, at + 4)
      end
    end
    if kept == '' then
      redis.call('HDEL', KEYS[1], ARGV[i])
    elseif kept ~= value then
      redis.call('HSET', KEYS[1], ARGV[i], kept)
    end
  end
end
return 1
"""

ALL = (
    BEGIN_EPOCH,
    REGISTER,
    HOLD_WRITERS,
    RELEASE_WRITERS,
    OPEN_SESSION,
    COMMIT,
    RETIRE,
    STORE,
    REMOVE,
)
