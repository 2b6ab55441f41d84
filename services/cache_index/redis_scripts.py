"""The Lua scripts. Each changes one record or one segment and is idempotent.

Node scripts use keys that share the hash tag `{nodes}`; segment scripts use one segment, so all of
them run on Redis Cluster.
"""

# KEYS epoch, counter, horizon; ARGV fresh epoch, first number → {epoch, horizon}
BEGIN_EPOCH = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  redis.call('SET', KEYS[2], ARGV[2])
end
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[3])}
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

# A segment is a hash, or, when many chains branch in it, several: linear hashing keeps each of them
# small enough for Redis' compact encoding. `mn...` has the number of buckets (n) and of fields (f)
# once there is more than one.
_BUCKETS = """
local base, meta = KEYS[1], KEYS[2]
local count, total
local function load_segment()
  local known = redis.call('HMGET', meta, 'n', 'f')
  count = tonumber(known[1] or '1')
  total = known[1] and tonumber(known[2]) or redis.call('HLEN', base)
end
local function name_of(bucket)
  if bucket == 0 then return base end
  return base .. ':' .. bucket
end
local function level_of(buckets)
  local level = 1
  while level < buckets do level = level * 2 end
  return level
end
local function bucket_of(field, level)
  if level == 1 then return 0 end
  local a, b, c = string.byte(field, 1, 3)
  local hash = a + b * 256 + c * 65536
  local bucket = hash % level
  if bucket >= count then bucket = bucket % (level / 2) end
  return bucket
end
local function by_bucket(packed)
  local level, groups = level_of(count), {}
  for at = 1, #packed, 8 do
    local field = string.sub(packed, at, at + 7)
    local bucket = bucket_of(field, level)
    local group = groups[bucket]
    if not group then group = {fields = {}, marks = {}}; groups[bucket] = group end
    group.fields[#group.fields + 1] = field
    group.marks[#group.marks + 1] = (at + 7) / 8
  end
  return groups
end
local function in_pieces(list, size, use)
  for first = 1, #list, size do
    local piece = {}
    for at = first, math.min(first + size - 1, #list) do piece[#piece + 1] = list[at] end
    use(piece)
  end
end
local function write(bucket, sets, dels)
  local name = name_of(bucket)
  in_pieces(sets, 1000, function(piece)
    total = total + redis.call('HSET', name, unpack(piece))
  end)
  in_pieces(dels, 1000, function(piece)
    total = total - redis.call('HDEL', name, unpack(piece))
  end)
end
local function without(value, void)
  local kept = {}
  for at = 1, #value, 5 do
    if not void[string.sub(value, at, at + 3)] then
      kept[#kept + 1] = string.sub(value, at, at + 4)
    end
  end
  return table.concat(kept)
end
local function values_of(bucket, fields)
  local values, name = {}, name_of(bucket)
  in_pieces(fields, 1000, function(piece)
    for _, value in ipairs(redis.call('HMGET', name, unpack(piece))) do
      values[#values + 1] = value
    end
  end)
  return values
end
local function drop(void, packed)
  for bucket, group in pairs(by_bucket(packed)) do
    local sets, dels = {}, {}
    for i, value in ipairs(values_of(bucket, group.fields)) do
      if value then
        local kept = without(value, void)
        if kept == '' then
          dels[#dels + 1] = group.fields[i]
        elseif kept ~= value then
          sets[#sets + 1] = group.fields[i]
          sets[#sets + 1] = kept
        end
      end
    end
    write(bucket, sets, dels)
  end
end
local function split()
  local level = level_of(count + 1)
  local from, into = count - level / 2, count
  local content, moved, gone = redis.call('HGETALL', name_of(from)), {}, {}
  for i = 1, #content, 2 do
    local a, b, c = string.byte(content[i], 1, 3)
    if (a + b * 256 + c * 65536) % level == into then
      moved[#moved + 1] = content[i]
      moved[#moved + 1] = content[i + 1]
      gone[#gone + 1] = content[i]
    end
  end
  in_pieces(moved, 1000, function(piece) redis.call('HSET', name_of(into), unpack(piece)) end)
  in_pieces(gone, 1000, function(piece) redis.call('HDEL', name_of(from), unpack(piece)) end)
  count = count + 1
end
local function save_segment()
  if count > 1 then
    if total > 0 then redis.call('HSET', meta, 'n', count, 'f', total)
    else redis.call('DEL', meta) end
  end
end
"""

# KEYS segment, its meta; ARGV number (4 bytes), removed, stored (8 bytes a field), marks (1 each)
CHANGE = (
    _BUCKETS
    + """
load_segment()
local number = ARGV[1]
local void = {[number] = true}
drop(void, ARGV[2])
for bucket, group in pairs(by_bucket(ARGV[3])) do
  local sets = {}
  for i, value in ipairs(values_of(bucket, group.fields)) do
    local kept = value and without(value, void) or ''
    sets[#sets + 1] = group.fields[i]
    sets[#sets + 1] = kept .. number .. string.sub(ARGV[4], group.marks[i], group.marks[i])
  end
  write(bucket, sets, {})
end
while total > 96 and total > count * 48 do split() end
save_segment()
return 1
"""
)

# KEYS segment, its meta; ARGV numbers (4 bytes each, packed), fields (8 bytes each, packed)
DROP = (
    _BUCKETS
    + """
load_segment()
local void = {}
for at = 1, #ARGV[1], 4 do void[string.sub(ARGV[1], at, at + 3)] = true end
drop(void, ARGV[2])
save_segment()
return 1
"""
)

ALL = (
    BEGIN_EPOCH,
    REGISTER,
    HOLD_WRITERS,
    RELEASE_WRITERS,
    OPEN_SESSION,
    COMMIT,
    RETIRE,
    CHANGE,
    DROP,
)
