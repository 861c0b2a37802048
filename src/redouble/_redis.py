"""The way to Redis: the user's own client, and the scripts that run on the server.

A script runs as a whole or not at all, reads the server's clock, and touches one key, so that it runs on
clusters too. It is sent by its digest; a server that does not know it yet is given the text.
"""

from __future__ import annotations

from ._callables import is_async
from ._numbers import INF
from ._shapes import entry, probe, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._store import Words

# Numbers travel as text of 17 digits: Redis would cut a number down to its whole part.
# The last word is "True" where the script must write in any case: a replica that is read-only, or a server
# that is full, fails then, and is not taken for one that is back because it could be read.
# A budget is a text that holds what is left. No key: it is full.
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

# A circuit is a hash; what happens in here is what happens in _circuit.Circuit, under the same names.
# No key: it is closed. A generation is a time, so that one of a hash that was lost does not come again.
CIRCUIT = """
local happening, ticket, place, text = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, wanted, open_for = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local allowed, ttl, abandoned = tonumber(ARGV[8]), tonumber(ARGV[9]), ' ' .. ARGV[10] .. ' '
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
  if string.find(abandoned, ' ' .. id .. ' ', 1, true) then changed = true else table.insert(probes, id) end
end

local function next_generation()
  generation, probes, since, changed = math.max(generation + 1, micros), {}, 0, true
end

local function go(to, until_when)
  next_generation()
  state, ends, successes, oldest = to, until_when, 0, generation
  if to == 'closed' then failures = 0 end
  if to == 'closed' or happening == 'open' then last = '' end
end

local function pass_time()
  if state == 'open' and ends and now >= ends then
    go('half-open')
  elseif state == 'half-open' and #probes > 0 and now - since >= open_for then
    next_generation()
  end
end

local function place_of(id)
  for i, other in ipairs(probes) do if other == id then return i end end
end

local function let_go()
  local i = place_of(place) or (place == '' and 1)
  if i and probes[i] then table.remove(probes, i) end
  changed = true
end

local function admit()
  if state == 'closed' then return true end
  if state == 'open' then return false end
  if place_of(place) then return true end
  if #probes >= allowed or #probes + successes >= math.max(allowed, wanted) then return false end
  table.insert(probes, place)
  since, changed = now, true
  return true
end

local function succeed()
  if state == 'closed' then
    if failures > 0 then failures, changed = 0, true end
  elseif successes + 1 >= wanted then
    go('closed')
  else
    let_go()
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
if happening == 'enter' then
  pass_time()
  admitted = admit()
elseif happening == 'open' or happening == 'close' then
  go(happening == 'open' and 'open' or 'closed')
elseif counts and happening == 'success' then
  succeed()
elseif counts and happening == 'failure' then
  fail()
elseif counts and happening == 'release' and state == 'half-open' then
  let_go()
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


class RedisLink:
    """A key of a Redis, seen through the user's own client, and the script that speaks for it."""

    def __init__(self, client: Any, key: str, script: str) -> None:
        if isinstance(client, type) or not all(callable(getattr(client, m, None)) for m in _NEEDED):
            raise TypeError(f"client must be a redis.Redis or a redis.asyncio.Redis, got {client!r}")
        self.client = client
        self.key = key
        self.is_async = self.cuts_off = is_async(client.execute_command)
        self._script = script
        self._digest: str | None = None

    def run(self, words: Words, patience: float) -> Any:
        """Runs the script on the server; gives something to await where the client is async."""
        return self._run_async(words) if self.is_async else self._run(words)

    def _run(self, words: Words) -> Any:
        try:
            return self.client.evalsha(self._sha1(), 1, self.key, *map(_as_text, words))
        except Exception as error:
            if not _is_unknown_script(error):
                raise
        return self.client.eval(self._script, 1, self.key, *map(_as_text, words))

    async def _run_async(self, words: Words) -> Any:
        try:
            return await self.client.evalsha(self._sha1(), 1, self.key, *map(_as_text, words))
        except Exception as error:
            if not _is_unknown_script(error):
                raise
        return await self.client.eval(self._script, 1, self.key, *map(_as_text, words))

    def _sha1(self) -> str:
        if self._digest is None:
            import hashlib

            self._digest = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        return self._digest


def warn_of_patience(client: Any, name: str, slow: float) -> None:
    """Warn if a sync client may hold a call up for longer than ``slow``; an asyncio client is cut off."""
    timeout, retries = _patience(client)
    if timeout <= slow and not retries:
        return
    import warnings

    found = [f"waits {timeout:g} s for an answer"] if timeout > slow else []
    found += [f"repeats a command {retries} times"] if retries else []
    warnings.warn(
        f"the client of {name} {' and '.join(found)}, so a server that hangs holds up a call for longer than "
        f"slow={slow:g}: make the client with socket_timeout={slow:g}, socket_connect_timeout={slow:g} "
        "and retry=None",
        RuntimeWarning,
        stacklevel=3,
    )


def _patience(client: Any) -> tuple[float, int]:
    """Return the longest timeout of a client, and how often it repeats a command; zeros if unknown."""
    pool = probe(client, "connection_pool") or probe(client, "nodes_manager")
    settings = probe(pool, "connection_kwargs")
    if settings.__class__ is not dict:
        return 0.0, 0
    timeout, connecting = entry(settings, "socket_timeout"), entry(settings, "socket_connect_timeout")
    timeouts = [INF if seconds is None else seconds for seconds in (timeout, connecting or timeout)]
    retries = whole(probe(entry(settings, "retry") or probe(client, "retry"), "_retries"))
    return max([number for number in timeouts if isinstance(number, (int, float))], default=0.0), retries or 0


# About 30 years: more is not a time that Redis takes.
_LONGEST = 1e12


def milliseconds(seconds: float) -> float:
    """A time that Redis takes: at least one millisecond, and no number beyond its own."""
    return max(1.0, min(seconds * 1000, _LONGEST))


_NEEDED = ("execute_command", "evalsha", "eval")


def _as_text(word: Any) -> str:
    return word if isinstance(word, str) else repr(word)


def _is_unknown_script(error: Exception) -> bool:
    # By name: the client's own package is never imported.
    return type(error).__name__ == "NoScriptError" or str(error).startswith("NOSCRIPT")


def packed(text: str) -> str:
    """A text in ASCII, which passes through a client of any encoding."""
    return text.encode("unicode_escape").decode("ascii")


def unpacked(text: str | bytes) -> str:
    """The text again; a client may or may not have decoded it."""
    return (text.encode("ascii") if isinstance(text, str) else text).decode("unicode_escape")
