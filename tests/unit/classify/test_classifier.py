"""Classifiers of one's own, and explanations of verdicts."""

from __future__ import annotations

import copy
import http
import http.client
import pickle

import pytest

from redouble.classify import (
    RETRYABLE_STATUSES,
    Cause,
    Classifier,
    explain,
    verdict,
)
from redouble.classify._judge import Judge
from redouble.errors import DeadlineExceeded
from support.failures import HINT, Failure, answered, caused, failure

C = Cause


# Classifiers


class Flaky(Exception):
    pass


class VeryFlaky(Flaky):
    class Inner(Exception):
        pass


HERE = Flaky.__module__


@pytest.mark.parametrize("entry", [Flaky, f"{HERE}.Flaky"])
def test_a_classifier_takes_more_types_or_their_names(entry):
    assert brief_by(Classifier(transient=[entry]), VeryFlaky()) == (True, False, C.unknown)
    assert brief_by(Classifier(unprocessed=(entry,)), Flaky()) == (True, True, C.unknown)
    assert brief_by(Classifier(permanent=entry), VeryFlaky()) == (False, False, C.permanent)
    assert brief_by(Classifier(transient=entry), RuntimeError()) == (False, False, C.unknown)


@pytest.mark.parametrize("field", ["transient", "permanent", "unprocessed"])
def test_an_entry_is_the_reason_and_leaves_it_known_that_nothing_was_sent(field):
    found = Classifier(**{field: ConnectionError}).verdict(ConnectionRefusedError())
    assert (found.reason, found.unprocessed) == (f"ConnectionRefusedError is listed as {field}", True)


@pytest.mark.parametrize("field", ["statuses", "transient"])
def test_an_error_of_what_is_to_be_iterated_comes_out_as_it_is(field):
    with pytest.raises(ZeroDivisionError):
        Classifier(**{field: (1 / 0 for _ in "x")})


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_what_cannot_be_explained_is_said_and_an_interrupt_passes_through(trouble, monkeypatch):
    def raises(*_):
        raise trouble

    monkeypatch.setattr("redouble.classify._judge.Judge._error", raises)
    if trouble is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            explain(TimeoutError())
    else:
        assert explain(TimeoutError()).splitlines()[1:] == ["could not be examined: RuntimeError"]


def test_an_interrupt_while_a_verdict_is_traced_passes_through(monkeypatch):
    real, interrupts = Judge._error, [KeyboardInterrupt]

    def interrupted(*arguments):
        if interrupts:
            raise interrupts.pop()
        return real(*arguments)

    monkeypatch.setattr(Judge, "_error", interrupted)
    with pytest.raises(KeyboardInterrupt):
        explain(OSError("of no known kind"))


def brief_by(classifier, failure):
    found = classifier.verdict(failure)
    return found.retryable, found.unprocessed, found.cause


def test_a_name_may_give_the_package_alone_since_modules_move():
    moved = type("ApiError", (Exception,), {"__module__": "somelib._impl.errors"})()
    assert Classifier(transient="somelib.ApiError").verdict(moved).retryable
    assert Classifier(transient="somelib._impl.errors.ApiError").verdict(moved).retryable
    assert not Classifier(transient="somelib.errors.ApiError").verdict(moved).retryable


def test_a_nested_class_is_named_by_its_qualified_name():
    assert Classifier(transient=f"{HERE}.VeryFlaky.Inner").verdict(VeryFlaky.Inner()).retryable


def test_of_two_entries_that_fit_the_more_derived_counts():
    classifier = Classifier(transient=[Flaky], permanent=[VeryFlaky])
    assert classifier.verdict(Flaky()).retryable
    assert not classifier.verdict(VeryFlaky()).retryable


def test_entries_overrule_the_catalogue_and_keep_what_else_is_known():
    found = Classifier(permanent=[Failure]).verdict(answered(429, HINT))
    assert (found.retryable, found.cause, found.status) == (False, C.permanent, 429)
    found = Classifier(transient=[Failure]).verdict(answered(404, HINT))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (True, C.unavailable, 404, 5.0)
    assert Classifier(permanent=[ConnectionError]).verdict(ConnectionResetError()).retryable is False
    assert (
        Classifier(transient=[DeadlineExceeded])
        .verdict(DeadlineExceeded("x", attempts=1, elapsed=0))
        .retryable
    )


@pytest.mark.parametrize(
    ("field", "kind"), [("transient", ValueError), ("unprocessed", ValueError), ("permanent", TimeoutError)]
)
def test_entries_hold_for_builtin_errors_and_for_nobody_else(field, kind):
    before = verdict(kind())
    assert Classifier(**{field: [kind]}).verdict(kind()).retryable is not before.retryable
    assert verdict(kind()) == before


def test_entries_hold_for_errors_inside_errors_and_groups():
    classifier = Classifier(transient=[Flaky])
    assert classifier.verdict(caused(RuntimeError(), Flaky())).retryable
    assert classifier.verdict(ExceptionGroup("g", [Flaky(), TimeoutError()])).retryable


def test_a_classifier_may_have_other_statuses():
    classifier = Classifier(statuses={404, 202, http.HTTPStatus.BAD_GATEWAY})
    assert brief_by(classifier, answered(404)) == (True, False, C.unavailable)
    assert brief_by(classifier, (202, {}, b"")) == (True, False, C.unknown)
    assert brief_by(classifier, answered(202)) == (True, False, C.unknown)
    assert brief_by(classifier, answered(502)) == (True, False, C.server_error)
    assert brief_by(classifier, answered(503)) == (False, False, C.unavailable)
    assert brief_by(classifier, answered(555)) == (False, False, C.server_error)


def test_a_classifier_that_knows_only_other_statuses_judges_builtin_errors_as_the_default_does():
    assert Classifier(statuses=[404]).verdict(TimeoutError()) == verdict(TimeoutError())


def test_a_classifier_is_a_value():
    classifier = Classifier([503], transient=[Flaky, "a.B"], permanent="c.D", unprocessed=(OSError,))
    for same in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert same == classifier
        assert hash(same) == hash(classifier)
        assert same.verdict(Flaky()).retryable
    assert Classifier() == Classifier()
    assert Classifier(transient=[Flaky, OSError]) == Classifier(transient=[OSError, Flaky])
    assert Classifier(statuses=[500]) != Classifier()
    assert Classifier(sorted(RETRYABLE_STATUSES)) == Classifier()
    with pytest.raises(AttributeError):
        classifier.statuses = frozenset()


@pytest.mark.parametrize("field", ["transient", "permanent", "unprocessed"])
@pytest.mark.parametrize(
    "wrong",
    [KeyboardInterrupt, BaseException, int, "NoDot", "a.", "a b.C", [object()], 5, [[]], [None], Flaky()],
)
def test_a_classifier_refuses_what_is_no_failure_and_names_the_field(field, wrong):
    for make in (Classifier, Classifier().extend):
        with pytest.raises(TypeError, match=f"^{field} takes types of Exception, or their names"):
            make(**{field: wrong})


@pytest.mark.parametrize("wrong", [99, 600, 0, True, "503", None, 503.0])
def test_a_classifier_refuses_what_is_no_status_and_names_the_value(wrong):
    with pytest.raises(ValueError, match=r"^statuses must be HTTP statuses \(100 to 599\), got "):
        Classifier(statuses=[500, wrong])


@pytest.mark.parametrize("wrong", [503, None, [[503]]])
def test_a_classifier_refuses_what_are_no_statuses(wrong):
    with pytest.raises(TypeError, match=r"^statuses must be several HTTP statuses, such as \{503\}, got "):
        Classifier(statuses=wrong)


@pytest.mark.parametrize("field", ["transient", "unprocessed"])
def test_a_classifier_refuses_a_class_that_is_both_transient_and_permanent(field):
    rule = "permanent must not list classes of transient or unprocessed"
    with pytest.raises(ValueError, match=f"^{rule}, got 'a.B'$"):
        Classifier(**{field: ["a.B"]}, permanent=["a.B"])


# Classifiers made of others, and the protocol for libraries


class Busy(Exception):
    pass


def test_a_classifier_is_extended_without_changing_the_first():
    first = Classifier(transient=["company.Busy"])
    second = first.extend(statuses=[404], transient=[Busy], unprocessed=[KeyError], permanent=[TimeoutError])
    assert first == Classifier(transient=["company.Busy"])
    assert second.statuses == RETRYABLE_STATUSES | {404}
    assert second.transient == {"company.Busy", Busy}
    assert second.verdict(KeyError()).unprocessed
    assert not second.verdict(TimeoutError()).retryable
    assert pickle.loads(pickle.dumps(second)) == second


def test_what_is_named_anew_counts():
    patient = Classifier(permanent=[Busy]).extend(transient=[Busy])
    assert (patient.transient, patient.permanent) == ({Busy}, frozenset())
    assert patient.extend() == patient
    with pytest.raises(ValueError, match="permanent must not list"):
        patient.extend(transient=[KeyError], permanent=[KeyError])
    with pytest.raises(TypeError, match="transient takes types of Exception"):
        patient.extend(transient=[7])


def test_an_error_may_say_that_it_is_retryable_and_when():
    class Ours(Exception):
        retryable = True

    assert verdict(Ours()).retryable
    error = Ours()
    error.retry_after = 2.5
    assert (verdict(error).retry_after, verdict(error).unprocessed) == (2.5, True)
    error = caused(failure("library.Error", retryable=False), ConnectionResetError())
    assert verdict(error).retryable, (
        "a refusal is weak evidence: several libraries say it of any lost connection"
    )


# Why


def test_the_explanation_names_the_rule_and_what_was_looked_at():
    refused = caused(failure("httpx.ConnectError"), ConnectionRefusedError())
    assert explain(caused(failure("openai.APIConnectionError"), refused)).splitlines() == [
        "retryable, cause connection, unprocessed: ConnectionRefusedError inside ConnectError inside APIConnectionError",
        "APIConnectionError: nothing decides; openai.APIConnectionError is a wrapper; looked inside",
        "  ConnectError: nothing decides; httpx.ConnectError is a wrapper; looked inside",
        "    ConnectionRefusedError: operating system decides; no own error, code, HTTP status, class, own claim",
    ]


@pytest.mark.parametrize(
    ("thing", "lines"),
    [
        ((503, {"Retry-After": "7"}, b""), [
            "retryable, cause unavailable, unprocessed, retry after 7 s: HTTP 503 with Retry-After: 7",
            "tuple: HTTP status 503 decides",
        ]),
        ("page", ["not retryable, cause unknown: no failed response", "str: no response"]),
        (failure("json.decoder.JSONDecodeError"), [
            "not retryable, cause permanent: JSONDecodeError",
            "JSONDecodeError: class decides (json.JSONDecodeError); no own error, code, HTTP status",
        ]),
        (ExceptionGroup("g", [ValueError()]), [
            "not retryable, cause unknown: ValueError: nothing is known about it in a group of 1",
            "ExceptionGroup: a group of 1, retryable if all of them are",
            "  ValueError: nothing decides; looked inside",
        ]),
        (KeyboardInterrupt(), ["not retryable, cause permanent: KeyboardInterrupt is not a failure"]),
    ],
)  # fmt: skip
def test_every_kind_of_failure_can_be_explained(thing, lines):
    assert explain(thing).splitlines() == lines


def test_a_classifier_explains_its_own_verdicts():
    assert Classifier(transient=[Busy]).explain(Busy()).startswith("retryable, cause unknown: Busy is listed")


def test_an_explanation_that_fails_is_no_error(monkeypatch):
    monkeypatch.setattr("redouble.classify._judge.Judge._tell", lambda *_: 1 / 0)
    assert explain(Busy()).endswith("could not be examined: ZeroDivisionError")
