"""Throttles at a given rate."""

from __future__ import annotations

from redouble.throttle import AdaptiveThrottle

BETA, SCALE = 0.7, 0.4


class Response:
    """As HTTP clients return it."""

    def __init__(self, status_code):
        self.status_code = status_code
        self.headers = {}


class TooManyRequests(Exception):
    """As HTTP clients raise it."""

    response = Response(429)


def at_rate(rate, clock, **settings):
    """An active throttle with this rate and no token, and the time of the last complaint now."""
    throttle = AdaptiveThrottle(clock=clock, **{"sleep": getattr(clock, "sleep", None), **settings})
    throttle.throttled()
    throttle._bucket = rate, 0.0, throttle._seen
    throttle._curve = rate / throttle.beta, throttle._seen
    return throttle
