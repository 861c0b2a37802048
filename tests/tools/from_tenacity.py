"""Move decorators of tenacity to redouble by the rows of `docs/coming-from/tenacity.md`, and compare both.

    python tests/tools/from_tenacity.py              # all combinations below; exit status 1 if one differs
    python tests/tools/from_tenacity.py FILE         # print what the decorators of a file become

`moved` translates the keywords of one ``@retry(...)``. `compare` runs both sides on a virtual clock with the same random
numbers: the same attempts, the same waits, the same error. Where tenacity has a time limit that is looked at too late
(`stop_after_delay`), redouble makes fewer attempts, and its waits are the first ones of tenacity's.
"""

from __future__ import annotations

import ast
import itertools
import logging
import math
import random
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from redouble import Policy, backoff
from redouble.testing import FakeClock

STOPS = (
    "stop=stop_after_attempt(5)",
    "stop=stop_before_delay(20)",
    "stop=stop_after_delay(20)",
    "stop=stop_after_attempt(6) | stop_before_delay(12)",
)
WAITS = (
    "wait=wait_fixed(2)",
    "wait=wait_exponential(multiplier=1, min=4, max=10)",
    "wait=wait_random_exponential(multiplier=2, min=1, max=60)",
    "wait=wait_incrementing(start=1, increment=1, max=5)",
    "wait=wait_exponential_jitter(initial=1, max=60, jitter=2)",
    "wait=wait_none()",
)
PREDICATES = ("retry=retry_if_exception_type(OSError)", "retry=retry_if_exception(is_busy)")
ENDS = ("reraise=True", "reraise=True, before_sleep=before_sleep_log(logger, logging.INFO)", "")
MOST = 30  # attempts, where a combination has no limit in time that waits add up to

# One clause for each row: the name that tenacity gives it, and a function from its arguments to redouble's fields.


def _exponential(multiplier=1, max=math.inf, exp_base=2, min=0, **other):
    factor = "exponential" if exp_base == 2 else f"partial(exponential, factor={exp_base})"
    return {"backoff": factor, "base": multiplier, "floor": min, "cap": _cap(max)}


def _random_exponential(multiplier=1, max=math.inf, exp_base=2, min=0):
    return {"base": multiplier, "floor": min, "cap": _cap(max)}


def _incrementing(start=0, increment=100, max=math.inf):
    if start != increment:
        raise ValueError("linear() begins at its step: write a function of your own")
    return {"backoff": "linear", "base": increment, "cap": _cap(max)}


def _exponential_jitter(initial=1, max=math.inf, exp_base=2, jitter=1):
    return {"backoff": f"partial(additive_jitter, spread={jitter})", "base": initial, "cap": _cap(max)}


def _cap(seconds):
    return "math.inf" if seconds == math.inf else seconds


ROWS = {
    "stop_after_attempt": lambda n: {"attempts": n},
    "stop_before_delay": lambda seconds: {"give_up_after": seconds},
    "stop_after_delay": lambda seconds: {"give_up_after": seconds},
    "wait_none": lambda: {"backoff": "fixed", "base": 0.0},
    "wait_fixed": lambda seconds: {"backoff": "fixed", "base": seconds},
    "wait_exponential": _exponential,
    "wait_random_exponential": _random_exponential,
    "wait_incrementing": _incrementing,
    "wait_exponential_jitter": _exponential_jitter,
}
# Rows whose argument is passed on as it stands.
AS_IT_IS = {
    "retry_if_exception_type": "on={}",
    "retry_if_exception": "on={}",
    "before_sleep_log": "logger=False, listeners=[log_to({}, level={{Retrying: {}}})]",
}


def moved(keywords: str) -> str:
    """Return redouble's keywords for those of one ``@retry(...)`` of tenacity."""
    call = ast.parse(f"retry({keywords})", mode="eval").body
    fields: dict[str, object] = {}
    texts: list[str] = []
    for keyword in call.keywords:
        if keyword.arg == "reraise":
            continue  # it is always so
        for part in _parts(keyword.value):
            name = part.func.id
            if name in AS_IT_IS:
                texts.append(AS_IT_IS[name].format(*map(ast.unparse, part.args)))
            elif name in ROWS:
                given = {argument.arg: ast.literal_eval(argument.value) for argument in part.keywords}
                fields |= ROWS[name](*map(ast.literal_eval, part.args), **given)
            else:
                raise ValueError(f"no row for {name}")
    if "attempts" not in fields and "give_up_after" in fields:
        fields = {"attempts": "None", **fields}
    if fields.get("floor") == 0:
        del fields["floor"]
    return ", ".join([*(f"{name}={value}" for name, value in fields.items()), *texts])


def _parts(node):
    """Yield the calls that are joined by ``|``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _parts(node.left)
        yield from _parts(node.right)
    else:
        yield node


def is_busy(error):
    return "busy" in str(error)


def combinations() -> list[str]:
    """Return the keywords of every combination."""
    product = itertools.product(STOPS, WAITS, PREDICATES, ENDS)
    kept = [", ".join(filter(None, parts)) for parts in product]
    # Without waits a limit in time never comes.
    return [text for text in kept if "wait_none" not in text or "stop_after_attempt" in text]


def run(make, seed: int, clock: FakeClock) -> tuple[list[float], str]:
    """Return the waits of a call that always fails, and its error."""
    calls = []

    def fetch():
        calls.append(1)
        clock.advance(0.25)
        if len(calls) > MOST:
            raise AssertionError("no limit")
        raise OSError(f"busy {len(calls)}")

    random.seed(seed)
    try:
        make(fetch)()
    except Exception as error:  # what both sides end with
        last = getattr(error, "last_attempt", None)
        error = error if last is None else last.exception()
        return clock.waits, f"{type(error).__name__}: {error}"
    raise AssertionError("the call has succeeded")


def compare(keywords: str, seed: int = 7) -> str:
    """Return how both sides differ; empty if they do not."""
    import tenacity

    from redouble.events import Retrying, log_to

    logger = logging.getLogger("moved")
    names = {**vars(tenacity), "logger": logger, "logging": logging, "is_busy": is_busy}
    clock = FakeClock()
    with mock.patch("time.monotonic", clock):
        theirs = run(eval(f"retry({keywords}, sleep=clock.sleep)", {**names, "clock": clock}), seed, clock)
    own = {name: getattr(backoff, name) for name in backoff.__all__}
    own |= {
        "partial": partial,
        "math": math,
        "log_to": log_to,
        "Retrying": Retrying,
        "logger": logger,
        "logging": logging,
    }
    clock = FakeClock()
    given = {"Policy": Policy, "clock": clock, "is_busy": is_busy, **own}
    ours = run(eval(f"Policy({moved(keywords)}, clock=clock, sleep=clock.sleep)", given), seed, clock)
    if ours == theirs:
        return ""
    late = "stop_after_delay" in keywords
    if late and len(ours[0]) <= len(theirs[0]) and ours[0] == theirs[0][: len(ours[0])]:
        return ""
    return f"{keywords}\n  tenacity: {theirs}\n  redouble: {ours}"


def main(arguments: list[str]) -> int:
    if arguments:
        tree = ast.parse(Path(arguments[0]).read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "retry":
                keywords = ", ".join(ast.unparse(keyword) for keyword in node.keywords)
                print(f"{node.lineno}: @retry({moved(keywords)})")
        return 0
    tried = combinations()
    different = [found for keywords in tried if (found := compare(keywords))]
    print("\n".join([*different, f"{len(tried)} combinations, {len(different)} differ"]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
