"""No secret is left in a note, a log record or a dead letter, whole or in part, whatever way it takes there."""

from __future__ import annotations

import logging
import time

import pytest

from redouble import CircuitOpen, DeadlineExceeded, Policy, ResultRejected, history, retrying
from redouble._base.json_safe import JSONCopy, Masking, masked
from redouble._base.log_once import warn
from redouble._base.masking import is_secret, masked_text
from redouble._base.text import brief, cut, format_traceback, mask_line, printable
from redouble._engine import note
from redouble.breaker import CircuitBreaker
from redouble.dead_letters import DeadLetters, StoreError
from redouble.dead_letters._letter import Added, Store
from redouble.events import correlate
from redouble.hedging import hedge

TOKEN = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
FORGED = "slow\n2024-01-01 CRITICAL forged\r\x1b[31mred\u2028line\x85\x00\u202eend"


@pytest.fixture
def policy(clock):
    return Policy(attempts=2, clock=clock, sleep=clock.sleep, name="fetch")


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO, "redouble")


def pieces(secret, length=8):
    return [secret[start : start + length] for start in range(len(secret) - length + 1)]


def is_clean(text):
    return not any(piece in text for piece in pieces(TOKEN))


class Kept(Store):
    """A store of one letter."""

    letter = None

    def add(self, letter, *, now, limits):
        self.letter = letter
        return Added(letter, before=0, depth=1)


class Broken(Store):
    def add(self, letter, *, now, limits):
        raise StoreError(f"cannot reach redis://:{TOKEN}@cache", location="cache")


# Masked, then cut

SEAMS = [place + step for place in (200, 1000, 4000, 8000) for step in range(-16, 2, 2)]


@pytest.mark.parametrize("before", ["x ", "x"])
def test_half_a_secret_is_left_of_no_message_wherever_it_is_cut(before, policy):
    letters = Kept()
    for place in SEAMS:
        text = (before * place)[: place - 1] + " " + TOKEN + " end" * 500
        noted = TimeoutError(text)
        note.write_note(noted, "", note.record((), 1, noted, None, 0), "", 0.0, "", None)
        error = ExceptionGroup(text, [ValueError(text)])
        error.add_note(text)
        letter = DeadLetters(letters).put(error=error, replay_instructions=text, payload={text: text})
        outputs = {
            "traceback": letter.traceback,
            "error message": letter.error_message,
            "replay instructions": letter.replay_instructions,
            "payload": str(letter.payload),
            "group member": format_traceback(error, masked_text),
            "note": noted.__notes__[0],
            "brief": brief(error),
            "bytes": JSONCopy(limit=place).copy(text.encode()),
            "text": JSONCopy(limit=place).copy(text),
        }
        assert [name for name, told in outputs.items() if not is_clean(told)] == []


@pytest.mark.parametrize("place", range(984, 1002, 3))
def test_half_a_secret_is_left_in_no_log_record(policy, flavour, caplog, place):
    text = "x" * (place - 1) + " " + TOKEN + " end" * 500
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError(text), TimeoutError(text)))
    assert len(caplog.records) == 2
    assert all(is_clean(str(vars(record))) for record in caplog.records)


def test_secrets_that_are_masked_make_room_for_no_half_of_the_next():
    text = f"{TOKEN} " * 1000
    assert is_clean(mask_line(text))
    assert is_clean(Masking().mask_field("error_message", text, 100))
    assert is_clean(JSONCopy(limit=100).copy(text))


def test_a_text_is_cut_between_words_or_at_a_sign_or_in_a_word_of_any_length():
    assert cut("a" * 400 + " " + "b" * 50, 430) == "a" * 400
    assert cut("a" * 400 + "&" + "b" * 50, 430) == "a" * 400
    assert cut("a" * 1000, 430) == "a" * 430
    assert cut("abc", -5) == ""


# Where they are told


def test_a_letter_that_cannot_be_stored_logs_no_secret(policy, flavour, caplog):
    broken = policy.replace(dead_letters=DeadLetters(Broken()))
    error = TimeoutError(f"slow, password={TOKEN}")
    with pytest.raises(TimeoutError):
        flavour.call(broken, flavour.scripted(error, error))
    told = [record for record in caplog.records if "could not be stored" in record.getMessage()]
    assert [record.exc_info for record in told] == [None]
    assert "StoreError: cannot reach redis://***@cache" in told[0].exc_text
    assert is_clean(caplog.text)
    assert is_clean(error.__notes__[0])


def test_a_payload_that_cannot_be_made_tells_no_secret(policy, flavour, caplog):
    def payload():
        raise ValueError("x" * 180 + f" token={TOKEN}")

    letters = Kept()
    broken = policy.replace(dead_letters=DeadLetters(letters), payload=payload)
    with pytest.raises(TimeoutError):
        flavour.call(broken, flavour.scripted(TimeoutError("slow"), TimeoutError("slow")))
    assert is_clean(str(letters.letter))
    assert is_clean(caplog.text)


def test_an_open_circuit_tells_its_failure_without_secrets(clock, caplog):
    breaker = CircuitBreaker(failures=1, clock=clock, name="shop")
    breaker.failure(breaker.enter(), OSError(f"refused, password={TOKEN}"))
    with pytest.raises(CircuitOpen) as caught:
        breaker.enter()
    assert caught.value.last_failure == "OSError: refused, password=***"
    assert "(OSError: refused, password=***)" in str(caught.value)
    assert is_clean(str([vars(record) for record in caplog.records]))


def test_a_reason_to_run_again_is_told_without_secrets(policy, flavour):
    with pytest.raises(ResultRejected) as caught:
        flavour.block(policy, lambda attempt: attempt.again(f"password={TOKEN}"))
    assert str(caught.value).endswith("no attempts left; password=***")
    assert is_clean(caught.value.__notes__[0])


def test_a_reason_to_run_again_is_told_without_secrets_as_the_cause_of_a_deadline(policy, clock):
    late = policy.replace(deadline=50.0, sleep=lambda seconds: clock.sleep(100.0))
    with pytest.raises(DeadlineExceeded) as caught:
        for attempt in retrying(late):
            with attempt:
                attempt.again(f"password={TOKEN}")
    assert str(caught.value.__cause__).endswith("was refused: password=***")


def test_the_previous_failure_of_an_attempt_is_told_without_secrets(policy, flavour):
    seen = []

    def body(attempt):
        seen.append(attempt.previous)
        raise TimeoutError(f"token={TOKEN}")

    with pytest.raises(TimeoutError):
        flavour.block(policy, body)
    assert seen == [None, "TimeoutError: token=***"]


@pytest.mark.parametrize("place", range(984, 1002, 3))
def test_a_race_that_is_lost_tells_of_the_others_without_secrets(caplog, place):
    def fail():
        raise TimeoutError("x" * (place - 1) + f" {TOKEN} end")

    with pytest.raises(TimeoutError) as caught:
        hedge(after=5.0)(fail)()
    (record,) = caplog.records
    assert record.getMessage().endswith(" s: TimeoutError: " + "x" * 199 + "…")  # the time is real
    assert is_clean(str([vars(record) for record in caplog.records]))
    assert is_clean(caught.value.__notes__[0])


def test_a_store_of_a_guard_that_fails_is_told_of_without_secrets():
    from redouble.shared._failover import _failure

    kind, message, _ = _failure(OSError("x" * 150 + f" redis://:{TOKEN}@cache"))
    assert kind == "OSError"
    assert is_clean(message)


# What the user masks


@pytest.mark.parametrize(
    "mask",
    [["patient"], lambda name, value: value.replace("Ann", "***") if isinstance(value, str) else value],
)
def test_what_the_user_masks_is_masked_in_note_log_and_letter(policy, flavour, caplog, mask):
    store = Kept()
    private = policy.replace(dead_letters=DeadLetters(store, mask=mask))
    error = TimeoutError("slow for patient=Ann")
    with pytest.raises(TimeoutError):
        flavour.call(private, flavour.scripted(error, error))
    assert history(error).failures[0].error_message == "slow for patient=***"
    assert "Ann" not in error.__notes__[0]
    assert [record.error_message for record in caplog.records] == ["slow for patient=***"] * 3
    assert "Ann" not in str(store.letter)


def test_what_is_stored_unmasked_is_masked_in_note_and_log_all_the_same(policy, flavour, caplog):
    store = Kept()
    error = TimeoutError(f"token={TOKEN}")
    with pytest.raises(TimeoutError):
        flavour.call(
            policy.replace(dead_letters=DeadLetters(store, mask=False)), flavour.scripted(error, error)
        )
    assert store.letter.error_message == f"token={TOKEN}"
    assert is_clean(error.__notes__[0])
    assert [record.error_message for record in caplog.records[:2]] == ["token=***"] * 2


@pytest.mark.parametrize("mask", [["patient"], lambda name, value: str(value).replace("Ann", "***")])
def test_what_the_user_masks_is_masked_in_the_error_of_a_replay(tmp_path, mask):
    def handler(letter):
        raise TimeoutError("slow for patient=Ann")

    with DeadLetters(tmp_path / "letters.db", mask=mask) as letters:
        letter = letters.put(error=ValueError("patient=Ann"), replay_instructions="ask patient=Ann")
        assert letter.replay_instructions == "ask patient=***"
        letters.replay(handler)
        assert letters.get(letter.id).last_replay_error == "TimeoutError: slow for patient=***"


# Letters that lost something


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (None, False),
        ({"order": 7}, False),
        ({"order": 7, "password": "hunter2"}, True),
        ({"text": "password=hunter2"}, True),
        ({"password=hunter2": 1}, True),
        (["tool", "--password", "hunter2"], True),
        (["curl", "-u", "ann:hunter2", "x"], True),
        ({"password": None}, False),
    ],
)
def test_a_letter_says_whether_its_payload_was_masked(payload, said, tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        letter = letters.put(payload=payload)
        assert letter.payload_masked is said
        assert letters.get(letter.id).payload_masked is said


def test_what_a_function_of_the_user_masks_counts_as_masked():
    plain = JSONCopy(masking=Masking(hook=lambda name, value: "hidden" if name == "email" else value))
    plain.copy({"n": 1})
    assert not plain.masked
    plain.copy({"email": "a@b"})
    assert plain.masked


def test_a_replay_warns_once_of_payloads_that_were_masked(tmp_path, caplog):
    with DeadLetters(tmp_path / "letters.db") as letters:
        letters.put(payload={"order": 7})
        first = letters.put(payload={"token": "abc"})
        letters.put(payload={"token": "abc"})
        caplog.clear()
        letters.replay(lambda letter: None)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"the payload of dead letter {first.id} was masked when it was stored: "
        "the handler must look up the secrets itself"
    ]


def test_a_replay_of_payloads_that_are_whole_warns_of_nothing(tmp_path, caplog):
    with DeadLetters(tmp_path / "letters.db") as letters:
        letters.put(payload={"order": 7})
        caplog.clear()
        letters.replay(lambda letter: None)
    assert caplog.records == []


# What a stranger writes


def test_no_field_of_a_log_record_begins_a_line_or_speaks_to_a_terminal(policy, flavour, caplog):
    correlate(lambda: {"trace_id": FORGED, "count": 7})
    kind = type(FORGED.replace("\0", ""), (TimeoutError,), {})
    try:
        with pytest.raises(TimeoutError):
            flavour.call(policy, flavour.scripted(kind(FORGED), kind(FORGED)))
    finally:
        correlate(None)
    assert len(caplog.records) == 2
    for record in caplog.records:
        fields = [value for value in vars(record).values() if isinstance(value, str)]
        assert [value for value in fields if not value.isprintable()] == []
        assert record.error_message == ("slow 2024-01-01 CRITICAL forged \\x1b[31mred line \\x00\\u202eend")
        assert record.count == 7


def test_a_traceback_in_the_log_has_no_line_that_a_message_wrote(caplog):
    try:
        try:
            raise ValueError(FORGED)
        except ValueError as error:
            raise KeyError(FORGED) from error
    except KeyError as error:
        warn(f"told {FORGED}", error)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert [line for line in record.exc_text.splitlines() if not line.isprintable()] == []
    assert [line for line in record.exc_text.splitlines() if line.startswith("2024")] == []


def test_an_error_whose_traceback_cannot_be_told_is_told_of_without_one(caplog):
    class Odd(Exception):
        __notes__ = property(lambda self: 1 / 0)

    warn("told", Odd())
    assert [(record.getMessage(), record.exc_text) for record in caplog.records] == [("told", None)]


def test_nothing_is_made_for_a_logger_that_wants_no_warnings(caplog):
    caplog.set_level(logging.ERROR, "redouble")
    warn("told", ValueError("x"))
    assert caplog.records == []


def test_what_is_printable_is_left_as_it_is():
    assert printable("naïve café 日本") == "naïve café 日本"
    assert printable("a\tb\ud800") == "a\\tb\\ud800"


# Structures

SECRET = "kX9mP2vL5qR8tW3z"


@pytest.mark.parametrize(
    "payload",
    [
        [(b"authorization", f"Bearer {SECRET}".encode())],
        {b"password": SECRET.encode()},
        {"Key": "DB_PASSWORD", "Value": SECRET},
        {"ParameterKey": "MasterPassword", "ParameterValue": SECRET},
        {b"name": b"API_TOKEN", b"value": SECRET},
        ["tool", "--password", SECRET],
        ["tool", b"--api-key", SECRET.encode(), "x"],
        ["curl", "--user", f"ann:{SECRET}", "x"],
        ["Host", "a.example", "Authorization", SECRET],
        ["Host", "a.example", "X-Api-Key", SECRET],
        ("https", f"ann:{SECRET}@api.example.com", "/x", ""),
        {"kty": "oct", "k": SECRET},
        {"params": {"key": SECRET}},
        {"code": SECRET},
    ],
)
def test_a_structure_that_names_a_secret_is_known_in_every_form(payload):
    assert SECRET not in str(masked(payload))


@pytest.mark.parametrize(
    "payload",
    [
        ["--password", "--verbose", "x"],
        ["a", "password", "b", "c"],
        ["x", "Authorization", "a", "b"],
        ["mailto:ann@example.com", "x", "y"],
        ["acme/app:1.2@sha256:0123", "x", "y"],
        ["tool", "-u", "https://a.example", "y"],
        ["k" * 300, "x", "y"],
        {"kty": "RSA", "n": "abc", "e": "AQAB"},
        {"k": SECRET, "d": SECRET},
        {"card": 7.5, "max_tokens": 10.5} | {"card": True},
        {"code": 7, "key": ["a", "b", "c"], "value": 3},
        {"key": "7f9c2ba4-e88f-4d1c-9d2a-0b6f6f2f8c11"},
        {"idempotency_key": SECRET},
        {"token": "expired", "password": "", "session": "None"},
    ],
)
def test_a_structure_that_only_resembles_one_is_stored_as_it_is(payload):
    assert "***" not in str(masked(payload))


def test_of_a_user_and_a_password_the_user_stays():
    assert masked(["curl", "-u", "ann:hunter2", "x"]) == ["curl", "-u", "ann:***", "x"]
    assert masked_text("curl -u ann:hunter2 x") == "curl -u ann:*** x"


@pytest.mark.parametrize(
    "name",
    ["token_type", "password_changed_at", "secretName", "cookie_domain", "passwordPolicy", "api_key_url"],
)
def test_a_name_that_says_something_about_a_secret_is_not_telling(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("passphrase: correct horse battery\nuser: ann", "passphrase: ***\nuser: ann"),
        ("token: |\n  abc\n  def\nuser: ann", "token: ***user: ann"),
        ("card: ace of spades, pin: 12", "card: ace of spades, pin: 12"),
        ('{"Key": "API_TOKEN", "Value": "two words"}', '{"Key": "API_TOKEN", "Value": "***"}'),
        ('{"Key": "Team", "Value": "two words"}', '{"Key": "Team", "Value": "two words"}'),
        ("key='abc' code=(1)", "key='abc' code=(1)"),
        (f"?code={SECRET}&x=1", "?code=***&x=1"),
        ("token=", "token="),
        ("<a b='c'/> <x password='hunter2'>", "<a b='c'/> <x password='***'>"),
        ("token: {{ token }} ${TOKEN} token=self.token", "token: {{ token }} ${TOKEN} token=self.token"),
        ("password = get_password()", "password = get_password()"),
        ("connect(api_key=api_key, token=${TOKEN}", "connect(api_key=api_key, token=${TOKEN}"),
        ("password=$ecret99 token='token'", "password=*** token='***'"),
        (f"the key {SECRET} is used twice", "the key *** is used twice"),
        ("the password 'x y' is wrong", "the password '*** y' is wrong"),
        ("Basic realm and Basic dXNlcjpwYXNz", "Basic realm and Basic ***"),
        ("password: ***", "password: ***"),
        ("token = \t\n", "token = \t\n"),
    ],
)
def test_a_text_keeps_what_is_harmless_beside_its_secrets(text, expected):
    assert masked_text(text) == expected


# Time

HOSTILE = [
    *("password ", "key ", "key: ", "token is ", "<password ", "<a:", "<a ", "sshpass ", "docker login -p", "mysql -p "),
    *("name=password ", "key: password value: ", "login a password ", "identified by ", "AUTH ", "SG.", "v1.0-"),
    *("SG.aaaaaaaaaaaaaaaa", "-u a:", "-u a:b ", "thin:a/b@", "pgpass a:1:", "netloc=a:", "password for a:"),
    *("PuTTY-User-Key-File-2: ", "password: |\n ", "password: |\n  a\n", "--password ", "credentials ('", "s."),
    *("hooks.slack.com/services/", "0123456789abcdef0123456789abcdef-us", "hf_", "xoxb-", "a.b@c:d", "token=self.a"),
    *("<key>token</key><a>", "ldapx -w", "redis-cli -a", 'Bearer error="', "token=a(", "token={{", "password is: "),
]  # fmt: skip


def seconds(text):
    start = time.process_time()
    masked_text(text)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_time_in_proportion_to_its_length(piece):
    short, long = [(piece * (length // len(piece) + 1))[:length] for length in (1 << 14, 1 << 18)]
    # Sixteen times the length: 256 times as long if it were quadratic.
    assert min(seconds(long) for _ in range(2)) < 60 * max(min(seconds(short) for _ in range(3)), 0.002)


@pytest.mark.slow
def test_a_mebibyte_of_hostile_text_takes_seconds():
    text = "".join((piece * (26_000 // len(piece))) for piece in HOSTILE)
    assert len(text) > 1 << 20
    taken = seconds(text)
    print(f"{len(text) / 2**20:.1f} MiB in {taken:.2f} s")
    assert taken < 10.0
