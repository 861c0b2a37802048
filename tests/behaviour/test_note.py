"""The story of a call that was given up on: as a note without secrets, and as data."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys

import pytest

import redouble
from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, history, retrying
from redouble._base.masking import masked_text
from redouble.backoff import exponential
from redouble.bulkhead import Bulkhead
from redouble.hedging import hedge


@pytest.fixture
def policy(clock):
    return Policy(backoff=exponential, name="fetch", clock=clock, sleep=clock.sleep)


def outcome(flavour, policy, *script):
    with pytest.raises(Exception) as caught:
        flavour.call(policy, flavour.scripted(*script))
    return caught.value


def test_the_history_of_an_error_is_what_its_note_says(flavour, policy):
    error = outcome(
        flavour, policy.replace(attempts=3), TimeoutError("a"), ConnectionResetError("b"), TimeoutError("c")
    )
    told = history(error)
    assert (told.name, told.attempts, told.elapsed, told.why) == ("fetch", 3, 3.0, "no attempts left")
    assert [(f.attempt, f.error_type, f.error_message, f.delay) for f in told.failures] == [
        (1, "TimeoutError", "a", 1.0),
        (2, "ConnectionResetError", "b", 2.0),
        (3, "TimeoutError", "c", None),
    ]
    assert told.left_out == 0
    assert error.__notes__[0].splitlines()[1:] == [f"  {failure}" for failure in told.failures]
    assert str(told.failures[0]) == "attempt 1: TimeoutError: a; waited 1.00 s"


def test_a_long_history_keeps_its_beginning_and_its_end(flavour, policy):
    error = outcome(flavour, policy.replace(attempts=20), *[TimeoutError(str(n)) for n in range(1, 21)])
    told = history(error)
    assert [failure.attempt for failure in told.failures] == [1, 2, 3, 14, 15, 16, 17, 18, 19, 20]
    assert (told.attempts, told.left_out) == (20, 10)


def test_a_deadline_tells_its_history_too(flavour, policy):
    error = outcome(flavour, policy.replace(deadline=2.5), *[TimeoutError("slow")] * 4)
    assert type(error) is DeadlineExceeded
    assert "deadline of 2.5 s" in history(error).why
    assert history(error).attempts == 2
    assert history(error.__cause__) is None


def test_a_refused_result_has_no_type_in_the_history(flavour, policy):
    error = outcome(flavour, policy.replace(until=bool, attempts=2), 0, 0)
    assert type(error) is ResultRejected
    assert [(f.error_type, f.delay) for f in history(error).failures] == [("", 1.0), ("", None)]


def test_an_error_that_was_never_retried_has_no_history(flavour, policy):
    assert history(outcome(flavour, policy, ValueError("no"))) is None
    assert history(ValueError("made elsewhere")) is None


def test_a_note_of_somebody_elses_is_no_history(flavour, policy):
    error = TimeoutError("slow")
    error.add_note("redouble: gave up on fetch, they say")
    assert history(error) is None
    error = outcome(flavour, policy.replace(attempts=1), error)
    assert history(error).attempts == 1
    assert len(error.__notes__) == 1


class WithoutNotes(TimeoutError):
    @property
    def __notes__(self):
        raise RuntimeError("no notes here")


def test_an_error_that_takes_no_notes_has_no_history(flavour, policy):
    assert history(outcome(flavour, policy.replace(attempts=1), WithoutNotes())) is None


def test_the_history_is_replaced_with_its_note(flavour, policy):
    error = TimeoutError("slow")
    outcome(flavour, policy.replace(attempts=1), error)
    outcome(flavour, policy.replace(attempts=2, name="outer"), error, error)
    assert (history(error).name, history(error).attempts) == ("outer", 2)
    assert len(error.__notes__) == 1


def test_a_history_is_a_value(flavour, policy):
    told = history(outcome(flavour, policy.replace(attempts=1), TimeoutError("slow")))
    assert pickle.loads(pickle.dumps(told)) == told == copy.deepcopy(told)
    with pytest.raises(AttributeError, match="immutable"):
        told.name = "other"
    with pytest.raises(AttributeError, match="immutable"):
        told.failures[0].delay = 3.0


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_error_keeps_its_note_as_plain_text(flavour, policy, protocol):
    error = outcome(flavour, policy.replace(attempts=1), TimeoutError("slow"))
    again = pickle.loads(pickle.dumps(error, protocol))
    assert [type(note) for note in again.__notes__] == [str]
    assert again.__notes__ == error.__notes__
    assert history(again) is None
    assert type(copy.copy(error).__notes__[0]) is not None


def test_a_pickled_error_can_be_read_where_redouble_is_not_installed(policy, tmp_path):
    with pytest.raises(TimeoutError) as caught:
        policy.replace(attempts=1).call(_times_out)
    (tmp_path / "error").write_bytes(pickle.dumps(caught.value))
    code = f"import pickle; print(pickle.loads(open({str(tmp_path / 'error')!r}, 'rb').read()).__notes__[0])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("redouble: gave up on fetch after 1 attempt")


def _times_out():
    raise TimeoutError("slow")


def test_no_exception_is_kept_by_a_history(policy):
    with pytest.raises(TimeoutError) as caught:
        policy.replace(attempts=2).call(_times_out)
    told = history(caught.value)
    assert {type(value) for failure in told.failures for value in failure._values()} <= {
        int,
        str,
        float,
        type(None),
    }


# Secrets

LEAKY = "POST https://bob:hunter2@host/?api_key=abc123 failed with Authorization: Bearer abc.def"


def test_a_note_masks_secrets(flavour, policy):
    error = outcome(
        flavour, policy.replace(attempts=2), TimeoutError(LEAKY), TimeoutError("password=hunter2")
    )
    text = error.__notes__[0] + repr(history(error))
    for secret in ("hunter2", "abc123", "abc.def"):
        assert secret not in text
    assert "password=***" in text
    assert str(error) == "password=hunter2"  # what the exception says is its own


def test_a_secret_at_the_seam_of_a_long_message_is_masked(flavour, policy):
    message = "x" * 180 + " see https://bob:hunter2-hunter2-hunter2@host/"
    error = outcome(flavour, policy.replace(attempts=1), TimeoutError(message))
    assert "hunter2" not in error.__notes__[0]


@pytest.mark.slow
def test_a_secret_at_the_end_of_what_is_kept_of_a_message_is_not_cut_in_half(flavour, policy, clock, caplog):
    for padding in range(930, 1000):
        caplog.clear()
        message = "x" * padding + " cannot connect to postgres://bob:hunter2correcthorse@db/x"
        with caplog.at_level("INFO", "redouble"):
            error = outcome(flavour, policy.replace(attempts=2), TimeoutError(message), TimeoutError(message))
        assert "hunter2" not in error.__notes__[0] + "".join(
            record.error_message for record in caplog.records
        )


def test_a_long_secret_is_masked_though_its_end_is_far_away(flavour, policy):
    message = f"postgres://bob:{'hunter2' * 60}@db"
    error = outcome(flavour, policy.replace(attempts=1), TimeoutError(message))
    assert "hunter2" not in error.__notes__[0] + repr(history(error))


def test_notes_that_are_a_list_of_a_kind_of_their_own_are_replaced_too(flavour, policy):
    class Notes(list):
        pass

    error = TimeoutError("slow")
    error.__notes__ = Notes()
    outcome(flavour, policy.replace(attempts=1), error)
    outcome(flavour, policy.replace(attempts=1), error)
    assert len(error.__notes__) == 1
    assert history(error).attempts == 1


def test_notes_that_cannot_even_be_looked_at_hide_no_error(flavour, policy):
    class Hostile:
        @property
        def __class__(self):
            raise RuntimeError("no class")

    error = TimeoutError("slow")
    error.__notes__ = Hostile()
    assert history(error) is None
    with pytest.raises(TimeoutError), redouble.retrying(policy):
        raise error


def test_a_note_masks_secrets_in_what_a_callback_raised(flavour, policy):
    def recover(error):
        raise RuntimeError("token=abc123 expired")

    rules = {TimeoutError: Rule(recover=recover)}
    error = outcome(flavour, policy.replace(rules=rules), TimeoutError("slow"))
    assert "token=*** expired" in error.__notes__[0]
    assert "token=*** expired" in history(error).why
    assert "abc123" not in error.__notes__[0]


def test_the_note_of_a_hedged_call_masks_secrets():
    @hedge(after=0.0, attempts=2)
    def fetch():
        raise TimeoutError("password=hunter2")

    with pytest.raises(TimeoutError) as caught:
        fetch()
    assert "password=***" in caught.value.__notes__[0]
    assert "hunter2" not in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "text",
    [
        "slow", "", "[Errno 111] Connection refused", "user: bob", "50 % of 3 items, 'a', 'b'",
        "naïve café", "日本語のメッセージ", "a" * 5000,
    ],
)  # fmt: skip
def test_a_text_without_a_trace_of_a_secret_comes_back_as_it_is(text):
    assert masked_text(text) is text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("api key: abc", "api key: ***"),
        ("API-KEY=abc", "API-KEY=***"),
        ("Säckel: 1 passwort=x password=x", "Säckel: 1 passwort=*** password=***"),
        ("key = value", "key = value"),
        ("a sk-abcdef0123456789", "a ***"),
        ("ghp_abcdef123", "***"),
        ("AKIAABCDEFGH1234", "***"),
        ("pin=1234", "pin=***"),
        ("X_PIN: 1234", "X_PIN: ***"),
        ("eyJhbGciOi.eyJzdWIi", "***"),
    ],
)
def test_a_text_with_a_trace_of_a_secret_is_looked_at_closely(text, masked):
    assert masked_text(text) == masked


def test_letters_that_are_written_in_two_ways_hide_no_secret():
    assert masked_text("ba\u017fic abc") == "ba\u017fic ***"
    assert masked_text("ΚΩΔΙΚΌΣ:x9", more=["ΚΩΔΙΚΌΣ"]) == "ΚΩΔΙΚΌΣ:***"


def test_words_of_the_user_make_a_text_worth_a_closer_look():
    assert masked_text("tax number: 12") == "tax number: 12"
    assert masked_text("taxnumber: 12", more=["Tax-Number"]) == "taxnumber: ***"


def test_history_is_in_the_package_itself():
    assert redouble.history is history


# Several layers


def lines_of(error):
    (note,) = error.__notes__
    return note.splitlines()


def layers(flavour, inner, outer, error):
    """A retried function that calls another one."""
    fetch = inner(flavour.scripted(*[error] * 8))
    fetch.__qualname__ = "fetch"
    if flavour.is_async:

        async def load():
            return await fetch()

    else:

        def load():
            return fetch()

    return outer.replace(name="load"), load


@pytest.mark.parametrize("attempts", [1, 4])
def test_the_line_of_an_attempt_says_how_the_inner_call_ended(flavour, clock, attempts):
    inner = Policy(attempts=attempts, clock=clock, sleep=clock.sleep, name="fetch")
    outer, load = layers(
        flavour,
        inner,
        Policy(attempts=2, nested="independent", clock=clock, sleep=clock.sleep),
        ConnectionResetError("reset"),
    )
    with pytest.raises(ConnectionResetError) as caught:
        flavour.call(outer, load)
    count = "1 attempt" if attempts == 1 else "4 attempts"
    first, *_, last = lines_of(caught.value)
    assert first.startswith("redouble: gave up on load after 2 attempts")
    assert last == f"  attempt 2: ConnectionResetError: reset (fetch gave up after {count})"
    assert history(caught.value).failures[1].error_message == f"reset (fetch gave up after {count})"


def test_the_end_of_an_inner_call_is_told_after_a_long_message_too(flavour, clock):
    inner = Policy(attempts=2, clock=clock, sleep=clock.sleep, name="fetch")
    twice = Policy(attempts=2, nested="independent", clock=clock, sleep=clock.sleep)
    outer, load = layers(flavour, inner, twice, TimeoutError("slow " * 500))
    with pytest.raises(TimeoutError) as caught:
        flavour.call(outer, load)
    assert lines_of(caught.value)[2].endswith("… (fetch gave up after 2 attempts)")


def test_a_block_is_an_inner_call_too(clock):
    quick = {"attempts": 2, "clock": clock, "sleep": clock.sleep}

    def load():
        for attempt in retrying(name="fetch", **quick):
            with attempt:
                raise ConnectionResetError("reset")

    with pytest.raises(ConnectionResetError) as caught:
        Policy(nested="independent", **quick).call(load)
    assert lines_of(caught.value)[1].startswith(
        "  attempt 1: ConnectionResetError: reset (fetch gave up after 2 attempts); waited"
    )


def test_an_error_object_that_is_kept_has_no_inner_call(clock):
    error = ConnectionResetError("reset")
    policy = Policy(attempts=2, clock=clock, sleep=clock.sleep)

    def fetch():
        raise error

    for _ in range(2):
        with pytest.raises(ConnectionResetError) as caught:
            policy.call(fetch)
        assert "gave up after" not in caught.value.__notes__[0]


# Who hears of it


def test_a_call_gives_up_where_nobody_listens(flavour, clock, monkeypatch):
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(
            Policy(attempts=2, clock=clock, sleep=clock.sleep), flavour.scripted(*[TimeoutError()] * 2)
        )
    assert history(caught.value).attempts == 2


def test_an_error_of_a_bulkhead_is_raised_as_it_is(flavour, clock):
    class Torn(Bulkhead):
        def acquire(self, timeout=None):
            raise LookupError("no slots")

        async def acquire_async(self, timeout=None):
            raise LookupError("no slots")

    with pytest.raises(LookupError, match="no slots"):
        flavour.call(Policy(bulkhead=Torn(1), clock=clock), flavour.scripted("page"))
