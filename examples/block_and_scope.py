"""Retry a block of statements, and share one deadline between many calls."""

import sqlite3

from redouble import DeadlineExceeded, Policy, retrying

store = sqlite3.connect(":memory:", isolation_level=None)
store.execute("create table log (run integer, line text)")

# A block: retry several statements together, without a function.
for attempt in retrying(attempts=3, base=0.05):
    with attempt, store:
        store.execute("begin")
        for line in "abc":
            store.execute("insert into log values (?, ?)", (attempt.number, line))
        if attempt.number == 1:
            raise TimeoutError("the disk is slow today")  # the transaction is rolled back
rows = store.execute("select count(*), max(run) from log").fetchone()
print(f"block: {rows[0]} rows, written by run {rows[1]}")
store.close()

# A block that requests another attempt without raising an exception.
pages = iter([None, None, "report.pdf"])
for attempt in retrying(attempts=5):
    with attempt:
        page = next(pages)
        if page is None:
            attempt.again("not ready", after=0.05)
print(f"polled: {page} on run {attempt.number}; previous run: {attempt.previous}")

# A scope: each call is retried, and all calls share a deadline of 0.5 s.
failures = {"disk": 1, "cpu": 0, "net": 99}


def read(sensor):
    if failures[sensor]:
        failures[sensor] -= 1
        raise TimeoutError(f"{sensor} does not answer")
    return f"{sensor} is fine"


with retrying(Policy(attempts=20, base=0.05, deadline=0.5)) as call:
    for sensor in failures:
        try:
            print("scope:", call(read, sensor))
        except DeadlineExceeded as error:
            print(f"scope: {sensor} exceeded the deadline; last error: {error.last_error}")
