"""structlog and loguru receive the extra fields of redouble's log records."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from interop.support import left_out
from redouble import Policy
from redouble.events import correlate
from redouble.testing import FakeClock, scripted
from support.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """The logger of redouble, restored after the test."""
    logger = logging.getLogger("redouble")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.setLevel("INFO")
    logger.propagate = False
    yield logger
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def retry_once(clock: FakeClock) -> None:
    correlate(lambda: {"trace_id": "4bf92f35"})
    try:
        policy = Policy(name="fetch", base=0.25, rng=None, clock=clock, sleep=clock.sleep)
        policy.call(scripted(Unavailable("try later"), "page"))
    finally:
        correlate(None)


def check(lines: list[dict[str, Any]], message: str) -> None:
    first, last = lines
    assert first[message].endswith(" s: Unavailable: try later (attempt 1 of 4)")
    assert last[message] == "recovered fetch at attempt 2 of 4 after Unavailable: try later"
    assert {
        name: first[name] for name in ("policy", "attempt", "cause", "status", "error_type", "trace_id")
    } == {
        "policy": "fetch",
        "attempt": 1,
        "cause": "unavailable",
        "status": 503,
        "error_type": "Unavailable",
        "trace_id": "4bf92f35",
    }
    assert 0 <= first["delay_ms"] <= 250
    assert last["attempt"] == 2


def test_structlog_renders_the_fields_as_json(log: logging.Logger, clock: FakeClock) -> None:
    left_out("structlog")
    import structlog

    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    log.addHandler(handler)
    retry_once(clock)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    check(lines, "event")
    assert [line["level"] for line in lines] == ["warning", "info"]


# What every record of logging has; what a record has besides came in as extra.
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


class ToLoguru(logging.Handler):
    """Pass records of ``logging`` to loguru, with their extra fields."""

    def emit(self, record: logging.LogRecord) -> None:
        from loguru import logger

        extra = {name: value for name, value in vars(record).items() if name not in PLAIN}
        logger.bind(**extra).opt(exception=record.exc_info).log(record.levelname, record.getMessage())


def test_loguru_gets_the_fields_as_extra(log: logging.Logger, clock: FakeClock) -> None:
    left_out("loguru")
    from loguru import logger

    records: list[dict[str, Any]] = []
    sink = logger.add(lambda message: records.append(json.loads(message)["record"]), serialize=True)
    log.addHandler(ToLoguru())
    try:
        retry_once(clock)
    finally:
        logger.remove(sink)
    check([{**record["extra"], "message": record["message"]} for record in records], "message")
    assert [record["level"]["name"] for record in records] == ["WARNING", "INFO"]
