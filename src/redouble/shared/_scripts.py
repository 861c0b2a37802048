"""Lua scripts of `RedisBudget` and `RedisBreaker`.

Each script touches one key, so it runs on clusters too, and reads the clock of the server. Numbers are
returned as text of 17 digits: Redis would truncate them to integers. The last argument is "True" if the
script must write in any case: a read-only replica or a full server then fails, and is not mistaken for one
that has recovered.
"""

from __future__ import annotations

# The key holds the tokens as text. No key: the budget is full.
BUDGET = """
local capacity, gain, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local needed, ttl = tonumber(ARGV[4]), math.max(1, math.min(tonumber(ARGV[5]) * 1000, 1e12))
local held = redis.call('GET', KEYS[1])
local tokens = capacity
if held then
  tokens = tonumber(held)
  if not tokens then return redis.error_reply('REDOUBLE this key does not hold a budget') end
  if not (tokens >= 0 and tokens < math.huge) then tokens = 0 end
end
tokens = math.min(capacity, tokens + gain)
local taken = 0
if cost > 0 and tokens >= needed then
  taken = cost
  tokens = tokens - cost
end
local is_full = tokens >= capacity
if not is_full or ARGV[6] == 'True' then
  redis.call('SET', KEYS[1], string.format('%.17g', tokens), 'PX', string.format('%.0f', ttl))
end
if is_full then redis.call('DEL', KEYS[1]) end
return {string.format('%.17g', taken), string.format('%.17g', tokens)}
"""

# The key holds a hash with the fields of `breaker.Phase`, and the functions below do what the
# methods of `breaker.Circuit` do. No key: the circuit is closed. A generation is at least the time
# in microseconds, so that the generation of a lost hash is never used again.
CIRCUIT = """
local action, ticket, probe, text = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, needed, open_for = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local allowed, ttl, released = tonumber(ARGV[8]), tonumber(ARGV[9]), ' ' .. ARGV[10] .. ' '
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = micros / 1000

local held, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do held[flat[i]] = flat[i + 1] end
if #flat > 0 and not (held.state and held.generation) then
  return redis.error_reply('REDOUBLE this key does not hold a circuit')
end
local state, generation = held.state or 'closed', tonumber(held.generation) or 0
local failures, successes = tonumber(held.failures) or 0, tonumber(held.successes) or 0
local ends, since, last = tonumber(held.ends), tonumber(held.since) or 0, held.last or ''
local oldest = tonumber(held.oldest) or generation
local before, changed, probes = state, false, {}
for id in string.gmatch(held.probes or '', '%S+') do
  if string.find(released, ' ' .. id .. ' ', 1, true) then changed = true else table.insert(probes, id) end
end

local function next_generation()
  generation, probes, since, changed = math.max(generation + 1, micros), {}, 0, true
end

local function go(to, until_when)
  next_generation()
  state, ends, successes, oldest = to, until_when, 0, generation
  if to == 'closed' then failures = 0 end
  if to == 'closed' or action == 'open' then last = '' end
end

local function pass_time()
  if state == 'open' and ends and now >= ends then
    go('half-open')
  elseif state == 'half-open' and #probes > 0 and now - since >= open_for then
    next_generation()
  end
end

local function index_of(id)
  for i, other in ipairs(probes) do if other == id then return i end end
end

local function end_probe()
  local i = index_of(probe) or (probe == '' and 1)
  if i and probes[i] then table.remove(probes, i) end
  changed = true
end

local function admit()
  if state == 'closed' then return true end
  if state == 'open' then return false end
  if index_of(probe) then return true end
  if #probes >= allowed or #probes + successes >= math.max(allowed, needed) then return false end
  table.insert(probes, probe)
  since, changed = now, true
  return true
end

local function succeed()
  if state == 'closed' then
    if failures > 0 then failures, changed = 0, true end
  elseif successes + 1 >= needed then
    go('closed')
  else
    end_probe()
    successes = successes + 1
  end
end

local function fail()
  last, changed = text, true
  failures = failures + 1
  if state == 'half-open' or failures >= limit then go('open', now + open_for) end
end

local admitted = false
local counts = state ~= 'open' and (not ticket or (oldest <= ticket and ticket <= generation))
if action == 'enter' then
  pass_time()
  admitted = admit()
elseif action == 'open' or action == 'close' then
  go(action == 'open' and 'open' or 'closed')
elseif counts and action == 'success' then
  succeed()
elseif counts and action == 'failure' then
  fail()
elseif counts and action == 'release' and state == 'half-open' then
  end_probe()
end

local function exact(n) return n and string.format('%.17g', n) or '' end
if changed or ARGV[11] == 'True' then
  redis.call('HSET', KEYS[1], 'state', state, 'generation', exact(generation), 'oldest', exact(oldest),
    'failures', failures, 'successes', successes, 'ends', exact(ends), 'since', exact(since), 'last', last,
    'probes', table.concat(probes, ' '))
  if state == 'open' and not ends then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(ttl, 2 * open_for)))
  end
end
return {admitted and 1 or 0, before, state, exact(generation), exact(oldest), failures, successes, #probes,
  exact(ends and ends - now), exact(now - since), last}
"""
