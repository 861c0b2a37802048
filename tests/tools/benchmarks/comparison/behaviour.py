"""Probes of behaviour: each takes a library, runs it, and returns what it saw as a `Cell`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from .base import (
    HINT,
    Answer,
    Cell,
    Decorator,
    Library,
    Settings,
    awaited,
    flaky,
    outcome,
    really_wait,
    waits_skipped,
)
from .checks import answer, calls_made, not_a_post, waits_of
from .features import FEATURES, NEAREST, feature


def code(label: str) -> str:
    """Format a label as code, unless it is prose."""
    return label if label.startswith("a ") else f"`{label}`"


def said(settings: Any) -> str:
    return ", ".join(map(code, settings))


def retried_by_default(library: Library) -> Cell:
    errors = [
        ValueError("bug"),
        KeyError("bug"),
        FileNotFoundError(2, "gone"),
        TimeoutError("slow"),
        ConnectionResetError(),
    ]
    kinds = [type(error).__name__ for error in errors]
    if isinstance(refusal := outcome(lambda: library.bare(len)), TypeError):
        missing = re.findall(r"'(\w+)'", str(refusal))
        return Cell("asks you", f"It requires {' and '.join(f'`{name}`' for name in missing)}.")
    with waits_skipped():
        retried = [kind for kind, error in zip(kinds, errors, strict=True) if tries(library.bare, error) > 1]
    if len(retried) in (0, len(errors)):
        return Cell(
            "nothing" if not retried else "every error", f"Tried: {', '.join(f'`{kind}`' for kind in kinds)}."
        )
    return Cell("transient errors", f"Retried: {', '.join(f'`{kind}`' for kind in retried)}; not the others.")


def tries(decorator: Decorator, error: BaseException) -> int:
    fetch, calls = flaky(error)
    outcome(lambda: decorator(fetch)())
    return len(calls)


def attempts_by_default(library: Library) -> Cell:
    number = calls_made(library.least)
    unknown = calls_made(library.least, RuntimeError("unheard of"))
    if number > 30:
        return Cell("no limit of attempts")
    notes = [f"{unknown} for an error of unknown kind."] if unknown not in (1, number) else []
    if library.most_seconds:
        seconds = inspect.signature(library.it.retry).parameters[library.most_seconds].default
        notes.append(f"No more after {seconds:.0f} s.")
    return Cell(f"{number} attempts", " ".join(notes))


def waits_by_default(library: Library) -> Cell:
    first = {waits_of(library.least, TimeoutError())[0] for _ in range(8)}
    if first == {0}:
        return Cell("no wait")
    return Cell("jitter" if len(first) > 1 else "no jitter")


def what_comes_out(library: Library) -> Cell:
    found = {}
    for label, decorator in library.same_error().items():
        errors = [TimeoutError("first"), TimeoutError("second")]
        with waits_skipped():
            error = outcome(decorator(flaky(*errors)[0]))
        found[label] = "your exception" if error is errors[1] else f"`{type(error).__name__}`"
    better = [label for label, text in found.items() if label and text == "your exception"]
    return Cell(found[""], f"`{better[0]}`: your exception, the same object." if better else "")


def story(library: Library) -> Cell:
    with waits_skipped():
        fetch = list(library.same_error().values())[-1](
            flaky(TimeoutError("first"), TimeoutError("second"))[0]
        )
        error = outcome(fetch)
    text = "".join(traceback.format_exception(error))
    if "first" not in text:
        return Cell("no", f"Nearest: {NEAREST['story', library.name]}.")
    noted = "first" in "".join(getattr(error, "__notes__", ()))
    return Cell("yes", "In a note, with the waits." if noted else "As the cause of your exception.")


def cause_kept(library: Library) -> Cell:
    cause, last = KeyError("why"), TimeoutError("second")
    last.__cause__ = cause
    with waits_skipped():
        error = outcome(list(library.same_error().values())[-1](flaky(TimeoutError("first"), last)[0]))
    kept = error is last and error.__cause__ is cause
    return Cell("yes") if kept else Cell("no", "It becomes the error of the attempt before.")


def passing(library: Library, run: Callable[[Decorator], int]) -> Cell:
    """By how often a function is called that is interrupted once: not at all where the setting is refused."""
    calls = {label: run(decorator) for label, decorator in library.broadest().items()}
    retried = [label for label, number in calls.items() if number > 1]
    if not retried:
        refused = [label for label, number in calls.items() if not number]
        tried = said(label for label in calls if label not in refused)
        return Cell("passes through", f"Tried: {tried}{f'; refused: {said(refused)}' if refused else ''}.")
    on_purpose = all("BaseException" in label for label in retried)
    return Cell("if `BaseException` is named" if on_purpose else "retried", f"With {said(retried)}.")


def keyboard_interrupt(library: Library) -> Cell:
    with waits_skipped():
        return passing(library, lambda decorator: tries(decorator, KeyboardInterrupt()))


def cancellation(library: Library) -> Cell:
    def run(decorator: Decorator) -> int:
        calls: list[int] = []

        async def fetch() -> str:
            calls.append(1)
            if len(calls) == 1:
                await asyncio.Event().wait()
            return "page"

        async def main() -> None:
            task = asyncio.ensure_future(decorator(fetch)())
            await really_wait(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()

        outcome(lambda: asyncio.run(main()))
        return len(calls)

    with waits_skipped():
        return Cell(passing(library, run).text)  # the settings are those of Ctrl-C


def sleeps_past_the_deadline(library: Library) -> Cell:
    ways = library.deadlines().items()
    slept = {label: sum(waits_of(decorator, ConnectionResetError())) for label, decorator in ways}
    least = min(slept.values())
    text = "gives up" if least == 0 else "sleeps past it" if least > 1 else "sleeps up to it"
    return Cell(
        text, "; ".join(f"{code(label)}: sleeps {seconds:.0f} s" for label, seconds in slept.items()) + "."
    )


def cut_off(library: Library) -> Cell:
    """Report whether an async attempt of 0.15 s is cut off at a limit of 0.03 s."""
    cutting = []
    for label, decorator in library.cuts().items():
        finished: list[int] = []

        async def fetch(finished: list[int] = finished) -> str:
            await really_wait(0.15)
            finished.append(1)
            return "page"

        with waits_skipped():
            outcome(lambda fetch=fetch, decorator=decorator: asyncio.run(decorator(fetch)()))
        if not finished:
            cutting.append(label)
    if not cutting:
        return Cell("no", f"Tried: {said(library.cuts())}. Nearest: `asyncio.timeout` around the call.")
    return Cell("yes", f"With {said(cutting)}.")


def retry_after(library: Library) -> Cell:
    if waits_of(library.least, answer(503))[0] >= HINT:
        return Cell("yes")
    for (label, status), decorator in library.hints().items():
        if waits_of(decorator, answer(status))[0] >= HINT:
            if "custom function" not in label and status == 503:
                return Cell("if asked", f"With {label}.")
            return Cell("no", f"Nearest: {label}{'' if status == 503 else f', for a {status} alone'}.")
    return Cell("no", "Its waits cannot depend on the error.")


def post(library: Library) -> Cell:
    if calls_made(library.least, Answer(500, "POST"), most=2) == 1:
        return Cell("sent once")
    ways = library.careful() or yours(library, not_a_post, "method")
    for label, way in ways.items():
        if calls_made(way, Answer(500, "POST"), most=2) == 1:
            return Cell("repeated", f"Nearest: {label}.")
    return Cell("repeated", BY_TYPE)


def status(library: Library) -> Cell:
    if tells_apart(library.least):
        return Cell("yes")
    ways = yours(library, lambda error: error.status == 503, "status")
    return Cell(
        "no", next((f"Nearest: {label}." for label, way in ways.items() if tells_apart(way)), BY_TYPE)
    )


def tells_apart(decorator: Decorator) -> bool:
    return calls_made(decorator, answer(503)) > 1 and calls_made(decorator, Answer(404)) == 1


BY_TYPE = "Nearest: errors of different types."


def yours(library: Library, wanted: Any, read: str) -> Settings:
    ways = library.chosen(wanted).items()
    return {f"{label}, with a custom function that reads the {read}": way for label, way in ways}


def raising_listener(library: Library) -> Cell:
    heard: list[int] = []

    def listener(*_: object, **__: object) -> None:
        heard.append(1)
        raise RuntimeError("trouble in the listener")

    ways = library.listening(listener)
    if not ways:
        return Cell("no listeners", "Nearest: its log, at level `DEBUG`.")
    hidden = []
    for label, decorator in ways.items():
        error = TimeoutError("slow")
        with waits_skipped(), muted():
            results = outcome(decorator(flaky(error)[0])), outcome(decorator(flaky(error, error)[0]))
        if not heard:
            raise AssertionError(f"{library.name}: {label} was not called")
        if results != ("page", error):
            hidden.append(label)
    return (
        Cell("hides it", f"With {said(hidden)}.") if hidden else Cell("does no harm", f"With {said(ways)}.")
    )


@contextlib.contextmanager
def muted() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def sync_and_async(library: Library) -> Cell:
    one, other = flaky(TimeoutError())[0], awaited(flaky(TimeoutError())[0])
    with waits_skipped():
        both = outcome(library.least(one)), outcome(lambda: asyncio.run(library.least(other)()))
    return Cell("yes" if both == ("page", "page") else "no")


def under_trio(library: Library) -> Cell:
    import trio

    for label, decorator in library.under_trio(trio).items():
        with waits_skipped():
            result = outcome(
                lambda decorator=decorator: trio.run(decorator(awaited(flaky(TimeoutError())[0])))
            )
        if result == "page":
            return Cell("yes", f"With `{label}`." if label else "")
    return Cell("no")


def generator(library: Library, drain: Any = None) -> Cell:
    before, after = items(library, 0, drain), items(library, 1, drain)
    if before != ["a", "b"]:
        return Cell("not retried")
    return (
        Cell("until the first item")
        if after == ["a"]
        else Cell("started over", f"A consumer saw {', '.join(after)}.")
    )


def async_generator(library: Library) -> Cell:
    async def taken(pages: Any, seen: list[str]) -> None:
        async for page in pages:
            seen.append(page)  # noqa: PERF401 - what was seen before an error counts

    return generator(library, lambda pages, seen: asyncio.run(taken(pages, seen)))


def items(library: Library, good: int, drain: Any) -> list[str]:
    """Return the items that a consumer gets from a generator whose first run fails after `good` items."""
    runs: list[int] = []

    def pages() -> Iterator[str]:
        runs.append(1)
        for number, page in enumerate("ab"):
            if len(runs) == 1 and number == good:
                raise TimeoutError("slow")
            yield page

    async def pages_async() -> AsyncIterator[str]:
        for page in pages():
            yield page

    seen: list[str] = []
    with waits_skipped():
        if drain is None:
            outcome(lambda: [seen.append(page) for page in library.limited(2)(pages)()])
        else:
            outcome(lambda: drain(library.limited(2)(pages_async)(), seen))
    return seen


PROBES: dict[str, Callable[[Library], Cell]] = {
    "with nothing configured, retries": retried_by_default,
    "at most, by default": attempts_by_default,
    "waits by default": waits_by_default,
    "raised at the end": what_comes_out,
    "the traceback lists every attempt": story,
    "`__cause__` of your exception is kept": cause_kept,
    "Ctrl-C under the broadest setting": keyboard_interrupt,
    "a cancelled task, likewise": cancellation,
    "deadline in 1 s, next wait 5 s": sleeps_past_the_deadline,
    "a running async attempt is cut off": cut_off,
    "`Retry-After` of a 503 is waited for": retry_after,
    "by itself, retries a 503 and not a 404": status,
    "a POST that failed with a 500 is": post,
    "a listener that raises": raising_listener,
    "sync and async by one decorator": sync_and_async,
    "trio": under_trio,
    "generators": generator,
    "async generators": async_generator,
} | {name: partial(feature, name) for name in FEATURES}
