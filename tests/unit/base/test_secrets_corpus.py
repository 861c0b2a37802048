"""How many secrets of a corpus reach a dead letter, a note or a log, and how many harmless texts are masked."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from redouble import Policy
from redouble.dead_letters import DeadLetters, masked
from redouble.dead_letters._letter import Added, Store
from redouble.testing import no_waits
from support.harmless_texts import HARMLESS_PAYLOADS, HARMLESS_TEXTS
from support.secrets_corpus import SECRET_PAYLOADS, SECRET_TEXTS, leaks

# The shares of secrets that may leak and of harmless cases that may be masked.
LEAKED, MASKED = 0.03, 0.03


class LastLetter(Store):
    """A store that remembers the last letter alone."""

    letter: Any = None

    def add(self, letter, *, now, limits):
        self.letter = letter
        return Added(letter, before=0, depth=1)


class Outputs:
    """What a failing call leaves behind: its dead letter, its note, its log records."""

    def __init__(self, caplog):
        caplog.set_level(logging.INFO, "redouble")
        self._caplog = caplog
        self._store = LastLetter()
        self._policy = Policy(
            attempts=2, dead_letters=DeadLetters(self._store), payload=lambda value: value, name="call"
        )

    def of(self, message: str = "slow", payload: Any = None) -> dict[str, str]:
        def fail(value):
            raise TimeoutError(message)

        self._caplog.clear()
        with no_waits():
            try:
                self._policy.call(fail, payload)
            except TimeoutError as error:
                note = "\n".join(error.__notes__)
        letter = self._store.letter.as_dict()
        return {
            "letter": json.dumps(letter, ensure_ascii=False),
            "letter fields": "\n".join(value for value in letter.values() if isinstance(value, str)),
            "note": note,
            "log": "\n".join(f"{record.getMessage()} {vars(record)}" for record in self._caplog.records),
            "log fields": "\n".join(
                value
                for record in self._caplog.records
                for value in vars(record).values()
                if isinstance(value, str)
            ),
        }


@pytest.fixture
def outputs(caplog):
    return Outputs(caplog)


def share(misses, cases, what):
    """The share of cases that missed, after printing them."""
    for miss in misses:
        print(f"{what}: {miss}")
    print(f"{what}: {len(misses)} of {len(cases)}, {len(misses) / len(cases):.1%}")
    return len(misses) / len(cases)


def test_the_corpus_is_as_large_as_it_says():
    assert len(SECRET_TEXTS) + len(SECRET_PAYLOADS) >= 250
    assert len(HARMLESS_TEXTS) + len(HARMLESS_PAYLOADS) >= 100


def test_hardly_any_secret_of_a_message_reaches_a_letter_a_note_or_a_log(outputs):
    found: dict[str, list[str]] = {}
    for text, secret in SECRET_TEXTS:
        for output, told in outputs.of(text).items():
            misses = found.setdefault(output, [])
            if leaks(told, secret):
                misses.append(text)
    shares = {output: share(misses, SECRET_TEXTS, output) for output, misses in found.items()}
    assert max(shares.values()) <= LEAKED


def test_hardly_any_secret_of_a_payload_reaches_its_letter(outputs):
    misses = [
        repr(payload)
        for payload, secret in SECRET_PAYLOADS
        if leaks(outputs.of(payload=payload)["letter"], secret)
    ]
    assert share(misses, SECRET_PAYLOADS, "letter") <= LEAKED


def test_harmless_messages_are_told_as_they_are(outputs):
    misses = []
    for text in HARMLESS_TEXTS:
        told = outputs.of(text)
        one_line = " ".join(text.split())
        kept = one_line in told["note"] and one_line in told["log fields"]
        if not (kept and " ".join(told["letter fields"].split()).count(one_line) >= 2):
            misses.append(text)
    assert share(misses, HARMLESS_TEXTS, "masked") <= MASKED


def test_harmless_payloads_are_stored_as_they_are(outputs):
    misses = []
    for payload in HARMLESS_PAYLOADS:
        outputs.of(payload=payload)
        stored = outputs._store.letter.payload
        if "***" in json.dumps(stored) or stored != masked(payload):
            misses.append(repr(payload))
    assert share(misses, HARMLESS_PAYLOADS, "masked") <= MASKED
