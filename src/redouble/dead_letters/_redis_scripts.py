"""Lua scripts of `RedisStore`. Each is atomic."""

from __future__ import annotations

# The beginning of each script. In the index, 'o' is for order and 'a' for age; the length before a queue's
# name keeps the names apart, and ';' is the character after ':'. Times are texts that sort as the numbers do.
COMMON = """
local LETTERS, INDEX, TALLIES = KEYS[1], KEYS[2], KEYS[3]
local layout = redis.call('HGET', LETTERS, 'layout')
if layout and layout ~= '1' then
  return redis.error_reply('REDOUBLE they were written by a later redouble (layout ' .. layout .. ')')
end
if redis.call('EXISTS', LETTERS, INDEX, TALLIES) ~= (layout and 3 or 0) then
  return redis.error_reply('REDOUBLE something else is there, or a part of the letters was lost')
end

local function scope(queue) return #queue .. ':' .. queue .. ':' end
local function ending(queue) return #queue .. ':' .. queue .. ';' end
local function name_of(life) return 'key ' .. scope(life.queue) .. life.idempotency_key end
local function content_of(id) return redis.call('HGET', LETTERS, 'content ' .. id) end
-- Of a letter whose state ('life') is damaged only the id is known.
local function load(id)
  local text = redis.call('HGET', LETTERS, 'life ' .. id)
  local sound, life = pcall(cjson.decode, text)
  if text and not sound then return nil, cjson.encode({id = id}) end
  return text and life, text
end

local function tally(queue, depth, parked, size)
  local letters = redis.call('HINCRBY', TALLIES, 'depth ' .. queue, depth)
    + redis.call('HINCRBY', TALLIES, 'parked ' .. queue, parked)
  redis.call('HINCRBY', TALLIES, 'size ' .. queue, size)
  if letters == 0 then
    redis.call('HDEL', TALLIES, 'depth ' .. queue, 'parked ' .. queue, 'size ' .. queue)
    if redis.call('EXISTS', TALLIES) == 0 then redis.call('DEL', LETTERS) end
  end
end

-- Where memory is full a script is refused at its first write, unless that one makes room. What leads to
-- fewer letters must not be refused, so a deletion comes first; a new letter must, so it goes without.
local function save(id, life, parked)
  local moved = life.parked ~= parked and (parked and 1 or -1) or 0
  life.parked = parked
  local text = cjson.encode(life)
  redis.call('HDEL', LETTERS, 'life ' .. id)
  redis.call('HSET', LETTERS, 'life ' .. id, text)
  if moved ~= 0 then tally(life.queue, -moved, moved, 0) end
  return text
end

local function remove(id, life)
  redis.call('HDEL', LETTERS, 'life ' .. id, 'content ' .. id)
  if life.idempotency_key ~= cjson.null then redis.call('HDEL', LETTERS, name_of(life)) end
  redis.call('ZREM', INDEX, 'o' .. scope(life.queue) .. id, 'a' .. scope(life.queue) .. life.at .. id)
  tally(life.queue, life.parked and 0 or -1, life.parked and -1 or 0, -life.size)
end

local function give_back(id, life, parked)
  life.leased_by, life.leased_until = cjson.null, '0'
  save(id, life, parked)
end

local function walk(low, high, visit)
  repeat
    local page = redis.call('ZRANGEBYLEX', INDEX, low, high, 'LIMIT', 0, 100)
    for _, member in ipairs(page) do if visit(member) then return end end
    low = '(' .. (page[#page] or '')
  until #page < 100
end

local function sweep(queue, high, now, spared, enough)
  local count, start = 0, 'a' .. scope(queue)
  walk('[' .. start, '(a' .. high, function(member)
    if enough(count) then return true end
    local id = string.sub(member, #start + 17)
    local life = load(id)
    if life and id ~= spared and tonumber(life.leased_until) <= now then
      remove(id, life)
      count = count + 1
    end
  end)
  return count
end
"""

ADD = (
    COMMON
    + """
local id, fresh, content = ARGV[1], cjson.decode(ARGV[2]), ARGV[3]
local now, rows, size, oldest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local most = tonumber(ARGV[8])
local queue, keyed = fresh.queue, fresh.idempotency_key ~= cjson.null
local function of(what) return tonumber(redis.call('HGET', TALLIES, what .. ' ' .. queue)) or 0 end
local function place(at) return 'a' .. scope(queue) .. at .. id end

local before = of('depth')
id = keyed and redis.call('HGET', LETTERS, name_of(fresh)) or id
local life, text = load(id)
if life and life.put == fresh.put then
  return {text, before - (life.puts == 1 and 1 or 0), before, 0, 0}
end
redis.call('HSET', LETTERS, 'layout', '1', 'content ' .. id, content)
if life then
  redis.call('ZREM', INDEX, place(life.at))
  tally(queue, 0, 0, fresh.size - life.size)
  life.at, life.size, life.put, life.puts = fresh.at, fresh.size, fresh.put, life.puts + 1
else
  life = fresh
  redis.call('ZADD', INDEX, 0, 'o' .. scope(queue) .. id)
  tally(queue, 1, 0, life.size)
  if keyed then redis.call('HSET', LETTERS, name_of(life), id) end
end
redis.call('ZADD', INDEX, 0, place(life.at))
text = save(id, life, life.parked)

local expired, crowded_out = 0, 0
if oldest ~= '' then
  expired = sweep(queue, scope(queue) .. oldest, now, id, function(count) return count >= most end)
end
crowded_out = sweep(queue, ending(queue), now, id, function(count)
  local too_many = rows and of('depth') + of('parked') > rows
  local too_large = size and of('size') > size
  return count >= most or not (too_many or too_large)
end)
return {text, before, of('depth'), expired, crowded_out}
"""
)

GET = (
    COMMON
    + """
local life, text = load(ARGV[1])
return text and {text, content_of(ARGV[1])}
"""
)

# Answers with the id after which to go on, if there is more to look at.
LIST = (
    COMMON
    + """
local queue, after, state, now = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local limit, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local found, looked, start = {''}, 0, 'o' .. scope(queue)
local function state_of(life)
  return life.parked and 'parked' or tonumber(life.leased_until) > now and 'leased' or 'waiting'
end
walk('(' .. start .. after, '(o' .. ending(queue), function(member)
  local id = string.sub(member, #start + 1)
  local life, text = load(id)
  looked = looked + 1
  if not life or state == '' or state == state_of(life) then
    table.insert(found, text)
    table.insert(found, content_of(id))
  end
  if looked >= most then found[1] = life and life.id or id end
  return looked >= most or #found > 2 * limit
end)
return found
"""
)

CLAIM = (
    COMMON
    + """
local id, owner, now, ends = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local life, text = load(id)
if not life or life.parked then return false end
if life.leased_by ~= owner or life.leased_until ~= ends then
  if tonumber(life.leased_until) > now then return false end
  life.leased_by, life.leased_until, life.replays = owner, ends, life.replays + 1
  text = save(id, life, life.parked)
end
return {text, content_of(id)}
"""
)

RENEW = (
    COMMON
    + """
local life = load(ARGV[1])
if not life or life.leased_by ~= ARGV[2] then return 0 end
life.leased_until = ARGV[3]
save(ARGV[1], life, life.parked)
return 1
"""
)

SETTLE = (
    COMMON
    + """
local life = load(ARGV[1])
if not life or life.leased_by ~= ARGV[2] then return 0 end
if life.puts ~= tonumber(ARGV[3]) then
  life.replays = life.replays - 1
  give_back(ARGV[1], life, life.parked)
  return 1
end
remove(ARGV[1], life)
return 1
"""
)

RELEASE = (
    COMMON
    + """
local id, owner, failed, text, parked = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5] == '1'
local counted = ARGV[6] == '1'
local life = load(id)
if not life or life.leased_by ~= owner then return 0 end
if failed then life.last_replay_error = text end
if not counted then life.replays = life.replays - 1 end
give_back(id, life, life.parked or parked)
return 1
"""
)

UNPARK = (
    COMMON
    + """
local life = load(ARGV[1])
if not life or not life.parked then return 0 end
life.replays = 0
save(ARGV[1], life, false)
return 1
"""
)

DISCARD = (
    COMMON
    + """
local life = load(ARGV[1])
if not life then return false end
remove(ARGV[1], life)
return life.queue
"""
)

PURGE = (
    COMMON
    + """
local queue, before, now, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
return sweep(queue, scope(queue) .. before, now, nil, function(count) return count >= most end)
"""
)

DEPTHS = COMMON + "return redis.call('HGETALL', TALLIES)"
