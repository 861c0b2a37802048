"""Dates in Retry-After: the three forms of HTTP-date."""

from __future__ import annotations

import calendar
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redouble._base import headers as _headers
from redouble.classify import _retry_after as _hints
from redouble.classify._retry_after import INTERESTING, hint, parse_retry_after


def headers_hint(headers, *, status=None, now=None):
    return hint(_headers.read_headers(headers, INTERESTING), status, now)


JUNE_2019 = 1559559600  # Mon, 03 Jun 2019 11:00:00 GMT
IN_2026 = 1785000000  # 25 July 2026
IN_2060 = 2850000000  # 24 April 2060


# One value: dates

VALID_DATES = [  # RFC 9110, go, httpdate, ruby, cache-tests
    ("Sun, 06 Nov 1994 08:49:37 GMT", 784111777),
    ("Sun Nov  6 08:49:37 1994", 784111777),
    ("Sunday, 06-Nov-94 08:49:37 GMT", 784111777),
    ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
    ("Fri, 02 Jan 1970 01:00:00 GMT", 90000),
    ("Tue, 03 Mar 1970 01:00:00 GMT", 5274000),
    ("Mon, 30 Aug 1971 01:00:05 GMT", 52362005),
    ("Fri, 26 Mar 1999 01:00:05 GMT", 922410005),
    ("Fri, 31 Dec 1999 23:59:59 GMT", 946684799),
    ("Wed, 15 Nov 1995 06:25:24 GMT", 816416724),
    ("Tue, 15 Nov 1994 08:12:31 GMT", 784887151),
    ("Sat, 29 Oct 1994 19:43:31 GMT", 783459811),
    ("Sunday, 23-Dec-07 11:22:33 GMT", 1198408953),
    ("Sun, 21 Nov 2286 04:46:39 GMT", 10000039599),
    ("Thu Aug  8 02:01:18 2050", 2543536878),
    # Case is free for lenient readers: cache-tests calls that optimal.
    ("THU, 18 Aug 2050 02:01:18 GMT", 2544400878),
    ("Thu, 18 AUG 2050 02:01:18 GMT", 2544400878),
    ("Thu, 18 Aug 2050 02:01:18 gMT", 2544400878),
    # Ruby and cache-tests refuse a one-digit day and UTC, httpdate a weekday that is not the date's. The
    # moment is plain all the same, and a hint that is refused means coming back too early.
    ("Sat, 1 Dec 2001 10:25:42 GMT", 1007202342),
    ("Mon, 3 Jun 2019 12:00:00 UTC", JUNE_2019 + 3600),
    ("Monday, 03-Jun-19 12:00:00 UTC", JUNE_2019 + 3600),
    ("Sun, 07 Nov 1994 08:48:37 GMT", 784198117),
    # Leap years and leap seconds.
    ("Thu, 29 Feb 1996 00:00:00 GMT", 825552000),
    ("Tue, 29 Feb 2000 23:59:59 GMT", 951868799),
    ("Wed, 01 Mar 2000 00:00:00 GMT", 951868800),
    ("Sat, 31 Dec 2016 23:59:60 GMT", 1483228800),
    ("  Sun, 06 Nov 1994 08:49:37 GMT\t", 784111777),
]


@pytest.mark.parametrize(("text", "epoch"), VALID_DATES)
def test_all_three_forms_of_date_are_seconds_from_now(text, epoch):
    now = min(epoch - 30, IN_2026)
    assert parse_retry_after(text, now=now) == epoch - now
    assert parse_retry_after(text.encode(), now=now) == epoch - now


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("3600", 3600),
        ("Mon, 3 Jun 2019 12:00:00 UTC", 3600),
        ("Mon, 3 Jun 2019 11:00:00 UTC", 0),
        ("Mon, 03 Jun 2019 11:30:12 GMT", 1812),
        ("Monday, 03-Jun-19 11:30:12 GMT", 1812),
        ("Mon Jun  3 11:30:12 2019", 1812),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Jerusalem", "America/St_Johns"])
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="no tzset on this platform")
def test_the_local_time_zone_changes_nothing(monkeypatch, zone, value, delay):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        try:
            assert parse_retry_after(value, now=JUNE_2019) == delay
            rfc3339 = {"anthropic-ratelimit-requests-reset": "2019-06-03T11:00:05Z"}
            assert headers_hint(rfc3339, now=JUNE_2019) == 5
        finally:
            patch.undo()
            time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "1994-11-06T08:49:37Z00:00", "1994-11-06T08:49:37Z", "Sun Nov 10 08*00:00 2000",
        "Thu, 18 Aug 2050 02:01:18 AEST", "Fri, 30 Nov 2001 21:30:00 JST", "Thu, 18 Aug 2050 02:01:18 +0000",
        "Thu 18 Aug 2050 02:01:18 GMT", "Thu, 18-Aug-2050 02:01:18 GMT", "Thu, 18 Aug 2050 2:01:18 GMT",
        "Thu, 18 Aug 2050 02:01:18", "Saturday, 01-Dec-2001 10:15:34 GMT", "Saturday, 01-Dec 10:15:34 GMT",
        "Saturday 01-Dec-01 10:15:34 GMT", "Saturday; 01-Dec-01 10:15:34 GMT", "Sat, 01-Dec-01 10:15:34 GMT", "Saturday, 01-Dec-01 10:15:34 EST",
        "Saturday, 01 Dec 2001 10:15:34 GMT", "Sun, Nov  6 08:49:37 1994", "Xyz, 06 Nov 1994 08:49:37 GMT",
        "Xyz Nov  6 08:49:37 1994", "Xyzday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Abc 1994 08:49:37 GMT",
        "Sun, 06 Nov +994 08:49:37 GMT", "Sun, +6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 +8:49:37 GMT",
        "Sun, 06 Nov 94 08:49:37 GMT", "Sun, 006 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 08:49:37:00 GMT", "Sun, 06 Nov 1994 08:49:3x GMT",
        "Sun, 06 Nov 1994 08:49:37.5 GMT", "Sun, 06 Nov 1994 8:49:37 GMT",
        "Sun, \u0660\u0666 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994\x0008:49:37 GMT", "GMT", "Sun", ",",
        "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:38 GMT",
    ],
)  # fmt: skip
def test_what_is_not_a_date_of_http_is_ignored(text):
    assert parse_retry_after(text, now=0) is None


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 32 Jan 2030 25:61:61 GMT", "Thu, 32 Jan 2030 00:00:00 GMT", "Sun, 31 Feb 2030 00:00:00 GMT",
        "Sun, 29 Feb 2026 00:00:00 GMT", "Mon, 29 Feb 2100 00:00:00 GMT", "Wed, 31 Apr 2030 00:00:00 GMT",
        "Tue, 00 Jan 2030 00:00:00 GMT", "Tue, 01 Jan 2030 24:00:00 GMT", "Tue, 01 Jan 2030 23:60:00 GMT",
        "Tue, 01 Jan 2030 23:59:61 GMT", "Fri, 01 Jan 99999 00:00:00 GMT", "Sat, 01 Jan 0000 00:00:00 GMT",
    ],
)  # fmt: skip
def test_a_date_that_no_calendar_has_is_ignored(text):
    assert parse_retry_after(text, now=IN_2026) is None


@pytest.mark.parametrize("year", [2027, 2028])
def test_every_month_ends_with_its_last_day(year):
    for month, name in enumerate(calendar.month_abbr[1:], 1):
        last = calendar.monthrange(year, month)[1]
        epoch = calendar.timegm((year, month, last, 0, 0, 0))
        assert parse_retry_after(f"Mon, {last} {name} {year} 00:00:00 GMT", now=IN_2026) == epoch - IN_2026
        assert parse_retry_after(f"Mon, {last + 1} {name} {year} 00:00:00 GMT", now=IN_2026) is None


def test_second_60_is_accepted_in_any_minute():
    assert parse_retry_after("Mon, 03 Jun 2019 11:00:60 GMT", now=JUNE_2019) == 60.0


def test_a_date_in_the_past_is_zero_not_negative():
    past = parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT", now=IN_2026)
    assert past == 0.0
    assert str(past) == "0.0"


@pytest.mark.parametrize(
    ("now", "digits", "year"),
    [
        (IN_2026, "26", 2026),
        (IN_2026, "76", 2076),
        (IN_2026, "77", 1977),  # 2077 would be 51 years ahead
        (IN_2026, "94", 1994),
        (IN_2026, "69", 2069),  # email.utils says 1969: it knows no clock and cuts at 68
        (IN_2060, "60", 2060),
        (IN_2060, "77", 2077),
        (IN_2060, "94", 2094),
        (IN_2060, "99", 2099),
        (IN_2060, "00", 2100),
        (IN_2060, "10", 2110),
        (IN_2060, "11", 2011),
        (4102444799, "00", 2100),  # the last second of 2099: a minute later is next century
    ],
)
def test_a_two_digit_year_more_than_50_years_ahead_is_in_the_past(now, digits, year):
    epoch = calendar.timegm((year, 12, 31, 0, 0, 0))
    assert parse_retry_after(f"Sunday, 31-Dec-{digits} 00:00:00 GMT", now=now) == max(0, epoch - now)
    assert _hints._full_year(digits, now) == year


@pytest.mark.parametrize("now", [1e300, float("nan"), float("inf")])
def test_a_clock_beyond_all_calendars_does_not_raise(now):
    assert parse_retry_after("Sunday, 06-Nov-94 08:49:37 GMT", now=now) is None


@given(st.integers(min_value=0, max_value=253402300799))
def test_every_second_until_the_year_9999_is_read_back_from_its_date(epoch):
    text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(epoch))
    assert parse_retry_after(text, now=0) == epoch
    assert parse_retry_after(time.asctime(time.gmtime(epoch)), now=0) == epoch


def test_without_now_the_wall_clock_is_asked(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: JUNE_2019)
    assert parse_retry_after("Mon, 03 Jun 2019 11:30:12 GMT") == 1812
    assert headers_hint({"Retry-After": "Mon, 03 Jun 2019 11:30:12 GMT"}) == 1812
