"""Redis clients that answer from a script, without a server."""

from __future__ import annotations

from typing import Any


class NoScriptError(Exception):
    """As in `redis.exceptions`: the server does not know the digest of a script."""


class FakeRedis:
    """A stand-in for `redis.Redis` that gives the answers of a script, in order.

    An answer that is an exception is raised, one that is callable is called. With ``repeat=True`` the last answer
    is given again and again; without it, a request too many fails. `asked` lists the requests:
    ``(command, script or digest, number of keys, *keys and arguments)``.
    """

    def __init__(self, *answers: Any, repeat: bool = False) -> None:
        self.answers = list(answers)
        self.repeat = repeat
        self.asked: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any) -> Any:
        raise AssertionError("not called")

    def evalsha(self, *args: Any) -> Any:
        return self.answer("evalsha", *args)

    def eval(self, *args: Any) -> Any:
        return self.answer("eval", *args)

    def close(self) -> None:
        raise AssertionError("the client belongs to the user")

    def answer(self, *request: Any) -> Any:
        """Record a request and give the next answer."""
        self.asked.append(request)
        assert self.answers, "a request more than the script has answers"
        answer = self.answers[0] if self.repeat and len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class AsyncFakeRedis(FakeRedis):
    """A stand-in for `redis.asyncio.Redis`, whose commands are plain functions that return an awaitable."""

    async def execute_command(self, *args: Any) -> Any:
        raise AssertionError("not called")

    def evalsha(self, *args: Any) -> Any:
        return self._answer_later("evalsha", *args)

    def eval(self, *args: Any) -> Any:
        return self._answer_later("eval", *args)

    async def _answer_later(self, *request: Any) -> Any:
        answer = self.answer(*request)
        return (await answer) if hasattr(answer, "__await__") else answer
