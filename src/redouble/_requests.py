"""Find the requests behind a failure, and say which of them must not be sent twice.

A request is looked for on the exception or response, in the frames that the exception came through, and
likewise on the errors that it wraps or was raised in the handling of. All of them count: one that must not be
repeated decides. The tables are in ``_request_tables``.

The rules of this file:

- Frames are read and never kept, and only those of the functions in the table; nothing is imported.
- Below a frame of a client, frames of other packages belong to the transport of the same request.
- An error that was already being handled when the attempt began is not part of the attempt.
- Strangers' objects are read by the rules of ``_shapes``.
"""

from __future__ import annotations

import sys

from ._catalogue import REPEATABLE_METHODS, RESPONSE_ATTRIBUTES, RETRYABLE_STATUSES, UNREPEATABLE_METHODS
from ._headers import header
from ._inquiry import examined
from ._kinds import kind_of
from ._request_tables import (
    AWS_NO_READS,
    AWS_READS,
    AWS_TOKENS,
    BEDROCK,
    BODIES,
    FRAMES,
    MADE_UP_KEYS,
    READS,
    REDIS_CONDITIONS,
    REDIS_REPEATABLE,
    TOKEN_HOSTS,
    TOKEN_SEGMENTS,
    URLS,
    VENDOR_HOSTS,
    VENDOR_READS,
)
from ._shapes import DICT, LIST, TUPLE, entry, inner, leaves, obtained, probe, real, text, whole
from .classify import _BUILTIN as BUILTIN_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType, TracebackType
    from typing import Any

_DEEPEST = 8  # errors within errors
_MOST_ERRORS = 10_000
_MOST_FRAMES = 2_000
_MOST_FOUND = 1_000  # redirects, commands of a pipeline, requests in one
_MOST_QUIET = 1_000
_LONGEST_BODY = 256 * 1024  # characters that are searched for the kind of an operation

# As Python itself keeps them, whatever an exception's own attributes do.
_trace: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
_cause: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
_context: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__

_URL_NAMES = frozenset(URLS)
_KNOWN_METHODS = REPEATABLE_METHODS | UNREPEATABLE_METHODS


class Sent:
    """One request, or one command, that may have been sent."""

    __slots__ = ("headers", "held", "method", "name", "repeatable")

    def __init__(
        self,
        method: str | None,
        held: Any = None,
        headers: Any = None,
        name: str = "",
        repeatable: bool | None = None,
    ) -> None:
        self.method = method
        # What has its URL and its body: an object, or the variables of a frame.
        self.held = held
        self.headers = headers
        # An operation or a command, where the method does not tell.
        self.name = name
        # None until it is asked for: most are repeatable by their method.
        self.repeatable = repeatable


def search(failure: object, unprocessed: bool = False, outside: int | None = None) -> Search:
    """Look for the requests behind a failure.

    ``unprocessed`` says that the request that failed last had no effect. ``outside`` is for blocks: the id of
    the exception that was being handled when the block began.
    """
    found = Search(failure, unprocessed, outside)
    if not real(failure, BaseException):
        own = shown_by(failure)
        found.judge(own[:1], own[1:], (), [])
        return found
    found.error(failure, (), 0, [])
    if not found.sent:
        # Where nothing else shows a request, a function that was given a method and a URL does.
        sent = [_by_shape(frame) for exc in found.seen.values() for frame in _frames(exc)]
        found.judge([given for given in sent if given is not None][-1:], [], (), [])
    return found


class Search:
    """The requests behind one failure. Errors that were seen are remembered, so that every cycle ends."""

    __slots__ = ("_failure", "_outside", "_unprocessed", "culprit", "seen", "sent")

    def __init__(self, failure: object, unprocessed: bool, outside: int | None) -> None:
        self._failure = failure
        self._unprocessed = unprocessed
        self._outside = outside
        self.seen: dict[int, BaseException] = {}
        self.sent: list[Sent] = []
        """All that were found until one must not be repeated."""
        self.culprit: Sent | None = None
        """The one that must not be repeated."""

    def error(
        self, exc: BaseException, above: tuple[BaseException, ...], depth: int, sending: list[FrameType]
    ) -> None:
        """Search an error, and the errors behind it.

        ``above`` are the errors that report the same failure, ``sending`` the frames below their request: an
        error that was caught there is of that request.
        """
        if id(exc) in self.seen or depth > _DEEPEST or len(self.seen) > _MOST_ERRORS:
            return
        self.seen[id(exc)] = exc
        frames, same = _frames(exc), (*above, exc)
        if frames and _is_among(frames[0], sending):
            sending = [*sending, *frames]
        else:
            first, sent = _in_frames(frames)
            sending = [] if first is None else frames[first:]
            # A client's own frames show all that its error could.
            own = [] if sending and _is_of(exc, sending[0]) else shown_by(exc)
            self.judge([*sent, *own[:1]], own[1:], same, frames)
        if real(exc, BaseExceptionGroup):
            for leaf in leaves(exc):
                self._go_on(leaf, (), depth, [])
        self._go_on(_cause(exc), same, depth, sending)
        context, reported = _context(exc), list(inner(exc, kind_of(type(exc)).deep))
        for found in reported:
            if found is not context:
                self._go_on(found, same, depth, sending)
        if context is not None and not self._is_outside(context):
            # An error that reports the one in whose handling it was raised is the same failure.
            above = same if _is_among(context, reported) else ()
            self._go_on(context, above, depth, sending)

    def _go_on(
        self,
        found: BaseException | None,
        above: tuple[BaseException, ...],
        depth: int,
        sending: list[FrameType],
    ) -> None:
        if found is not None and self.culprit is None:
            self.error(found, above, depth + 1, sending)

    def _is_outside(self, context: BaseException) -> bool:
        """Return whether an error was being handled before the attempt began."""
        return _is_handled(context) if self._outside is None else id(context) == self._outside

    def judge(
        self, sent: list[Sent], before: list[Sent], same: tuple[BaseException, ...], frames: list[FrameType]
    ) -> None:
        """Note the requests of one error, and the first of them that must not be repeated.

        ``before`` were answered with a redirect: they had their effect whatever became of the last one.
        """
        last = sent[-1].method if sent else None
        for request in (*before, *sent):
            self.sent.append(request)
            if _may_repeat(request, same[-1:], frames):
                continue
            # A redirect may change the method. The last request had no effect, not the one before.
            if request in before or request.method != last or not self._had_no_effect(same):
                self.culprit = request
                return

    def _had_no_effect(self, same: tuple[BaseException, ...]) -> bool:
        if self._unprocessed and (not same or same[0] is self._failure):
            return True
        return True in [examined(exc, RETRYABLE_STATUSES, None).unprocessed for exc in same]


def shows_nothing(failure: object) -> bool:
    """Return whether a failure certainly shows no request: a builtin error that went through no client."""
    if id(type(failure)) not in BUILTIN_ERRORS:
        return False
    error: Any = failure
    if error.__dict__ or error.__cause__ is not None or error.__context__ is not None:
        return False
    trace, known = error.__traceback__, _quiet.get
    while trace is not None:
        code = trace.tb_frame.f_code
        if known(id(code)) is not code and not _is_quiet(code):
            return False
        trace = trace.tb_next
    return True


# Functions that show no request, by id: hashing code takes longer. Held, so that no other gets the id.
_quiet: dict[int, CodeType] = {}


def _is_quiet(code: CodeType) -> bool:
    if code.co_name in FRAMES or "method" in code.co_varnames:
        return False
    if len(_quiet) >= _MOST_QUIET:
        _quiet.clear()
    _quiet[id(code)] = code
    return True


def _frames(exc: BaseException) -> list[FrameType]:
    """Return the frames that an exception came through, outermost first."""
    frames: list[FrameType] = []
    trace = _trace(exc)
    while trace is not None and len(frames) < _MOST_FRAMES:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _is_among(one: object, others: Iterable[object]) -> bool:
    # No generator: Python 3.13 crashes where it has no memory for a closure.
    for other in others:  # noqa: SIM110
        if other is one:
            return True
    return False


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.rpartition("._vendor.")[2] if type(name) is str else ""


def _in_frames(frames: list[FrameType]) -> tuple[int | None, list[Sent]]:
    """Return the index of the first frame that shows a request, and the requests, the last one last."""
    first, package, sent = None, "", list[Sent]()
    for index, frame in enumerate(frames):
        readers = FRAMES.get(frame.f_code.co_name)
        if readers is None:
            continue
        module = _module(frame)
        where, top = readers.get(module), module.partition(".")[0]
        if where is None or (package and package != top):
            continue
        try:
            found = _READERS.get(where, _held)(frame.f_locals, where)
        except Exception:  # noqa: BLE001, S112 - a frame that cannot be read shows no request
            continue
        if found and first is None:
            first, package = index, top
        sent += found
    return first, sent


def _is_of(exc: BaseException, frame: FrameType) -> bool:
    """Return whether an exception is of the client that this frame is of."""
    package = _module(frame).partition(".")[0]
    return package in [name for name, _ in kind_of(type(exc)).names]


def _is_handled(context: BaseException) -> bool:
    """Return whether a caller of this call is handling an error, so that it came before the attempt."""
    trace = _trace(context)
    handler = None if trace is None else trace.tb_frame
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not handler:
        frame = frame.f_back
    return frame is not None


# What an exception or a response shows


def shown_by(failure: object) -> list[Sent]:
    """Return the requests that an exception or response shows: the last one, then those redirected to it."""
    responses = [found for name in RESPONSE_ATTRIBUTES if (found := probe(failure, name)) is not None]
    holders = [failure, *responses]
    last = _last_shown(failure, holders, responses)
    if last is None:
        return []
    shown = [last]
    # urllib3 forgets the method of a request that a 303 has redirected, which is a POST as a rule.
    passed: Any = probe(probe(failure, "retries"), "history")
    redirects = list(TUPLE.__iter__(passed)) if real(passed, TUPLE) else []
    if 303 in [whole(probe(redirect, "status")) for redirect in redirects]:
        shown.append(Sent("POST"))
    for holder in holders:
        history: Any = probe(holder, "history")
        if type(history) in (list, tuple):
            before = [_last_shown(found, [found], []) for found in history[:_MOST_FOUND]]
            shown += [sent for sent in before if sent is not None]
    return shown


def _last_shown(failure: object, holders: list[object], responses: list[object]) -> Sent | None:
    requests = [probe(holder, name) for holder in holders for name in ("request", "request_info")]
    requests = [found for found in requests if found is not None]
    keyed = ([found for found in requests if _has_key(probe(found, "headers"))] or [None])[0]
    for found in requests:
        method = method_of(probe(found, "method"))
        if method is not None:
            return Sent(method, found, probe(found if keyed is None else keyed, "headers"))
    if keyed is not None:
        return Sent(None, keyed, probe(keyed, "headers"))
    # Last the response of the standard library, itself or inside one of urllib3, which remembers its request.
    own = [probe(failure, "method"), *[probe(response, "http_verb") for response in responses]]
    own += [probe(probe(failure, name), "_method") for name in ("fp", "_original_response")]
    for found in (*own, probe(failure, "_method")):
        method = method_of(found)
        if method in _KNOWN_METHODS:  # any object may have such an attribute, so only HTTP's own count
            return Sent(method, failure)
    return None


def method_of(value: object) -> str | None:
    """Return the method of a request in capitals; ``None`` if the value is not one."""
    method = text(value)
    if method is None or len(method) > 20 or not (method.isascii() and method.replace("-", "").isalpha()):
        return None
    return method.upper()


# One frame


def _by_names(variables: Any, _: str) -> list[Sent]:
    """Return the request of a frame with variables named method, url, headers and body."""
    method = method_of(variables.get("method"))
    return [] if method is None else [Sent(method, variables, variables.get("headers"))]


def _by_aiohttp(variables: Any, where: str) -> list[Sent]:
    # A redirect changes the variable; the responses that redirected remember the method.
    history: Any = variables.get("history")
    before = [sent for response in history or () for sent in shown_by(response)[:1]]
    return [*before, *_by_names(variables, where)]


def _held(variables: Any, where: str) -> list[Sent]:
    """Return the request that a variable of the frame holds."""
    held = variables.get(where)
    # urllib's request may know its method only by its data.
    method = method_of(probe(held, "method")) or method_of(obtained(held, "get_method"))
    return [] if method is None else [Sent(method, held, probe(held, "headers"))]


def _by_response(variables: Any, _: str) -> list[Sent]:
    """Return the request of a response that is being read."""
    return shown_by(variables.get("self"))


def _by_http_client(variables: Any, _: str) -> list[Sent]:
    """Return the request of a connection or response of http.client, which shows neither URL nor headers."""
    method = method_of(variables.get("method")) or method_of(probe(variables.get("self"), "_method"))
    return [] if method is None else [Sent(method, None, variables.get("headers"))]


def _by_stripe(variables: Any, _: str) -> list[Sent]:
    # The key in its headers is made up anew for each call, unless it was given in the options.
    method, key = method_of(variables.get("method")), entry(variables.get("options"), "idempotency_key")
    return [] if method is None else [Sent(method, None, {"Idempotency-Key": key})]


def _by_tornado(variables: Any, _: str) -> list[Sent]:
    if text(variables.get("request")) is None:
        return _held(variables, "request")
    return [Sent(method_of(entry(variables.get("kwargs"), "method")) or "GET", variables.get("request"))]


def _by_aws(variables: Any, _: str) -> list[Sent]:
    name, model = text(variables.get("operation_name")) or "", variables.get("operation_model")
    service = text(variables.get("service_name")) or "AWS"
    method = method_of(entry(probe(model, "http"), "method"))
    # A token that botocore fills in is another one for each call.
    filled_in, given = probe(model, "idempotent_members") or (), variables.get("api_params")
    token = any(entry(given, token) and token not in filled_in for token in AWS_TOKENS)
    repeatable = token or method in REPEATABLE_METHODS or is_aws_read(name)
    return [Sent(method, name=f"{service} {name}", repeatable=repeatable)]


def _by_redis(variables: Any, _: str) -> list[Sent]:
    return [_command(variables.get("args"))]


def _by_pipeline(variables: Any, _: str) -> list[Sent]:
    """Return one command of a pipeline: one that must not be repeated, if there is one."""
    stack: Any = variables.get("stack") or probe(variables.get("self"), "command_stack")
    given = [command[0] if real(command, TUPLE) else command.args for command in stack[:_MOST_FOUND]]
    commands = [_command(args) for args in given]
    return ([sent for sent in commands if not sent.repeatable] or commands)[:1]


def _command(args: Any) -> Sent:
    """Return a Redis command; one that is in no table counts as a POST."""
    given: list[Any] = [text(value) for value in args]
    name = (given[0] or "").upper()
    options = {option.upper() for option in given[2:] if option is not None and len(option) < 6}
    repeatable = name.partition(" ")[0] in REDIS_REPEATABLE and REDIS_CONDITIONS.isdisjoint(options)
    return Sent(None, name=f"Redis {name}", repeatable=repeatable)


_READERS: dict[str, Callable[[Any, str], list[Sent]]] = {
    "variables": _by_names,
    "aiohttp": _by_aiohttp,
    "http.client": _by_http_client,
    "response": _by_response,
    "aws": _by_aws,
    "stripe": _by_stripe,
    "tornado": _by_tornado,
    "redis": _by_redis,
    "pipeline": _by_pipeline,
}


def _by_shape(frame: FrameType) -> Sent | None:
    """Return the request of an unknown function that takes a method and a URL, as those of most SDKs do."""
    code = frame.f_code
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "method" not in taken or _URL_NAMES.isdisjoint(taken):
        return None
    found = _by_names(frame.f_locals, "")
    return found[0] if found and found[0].method in _KNOWN_METHODS else None


# One request


def _may_repeat(request: Sent, reported_by: tuple[BaseException, ...], frames: list[FrameType]) -> bool:
    if request.repeatable is None:
        request.repeatable = (
            request.method in REPEATABLE_METHODS
            or _has_key(request.headers)
            or (request.method == "POST" and _is_read(request, reported_by, frames))
        )
    return request.repeatable


def _has_key(headers: Any) -> bool:
    key = (header(headers, "Idempotency-Key") or "").strip()
    return bool(key) and not key.startswith(MADE_UP_KEYS)


def _is_read(request: Sent, reported_by: tuple[BaseException, ...], frames: list[FrameType]) -> bool:
    """Return whether a POST only reads, by its operation: in the path, in a header or in the body."""
    operation = (header(request.headers, "X-Amz-Target") or "").rpartition(".")[2]
    if is_aws_read(operation):
        return True
    host, path = _address(request.held)
    if path.endswith(READS) or _is_token(host, path) or _is_bedrock(path):
        return True
    if path.endswith("/graphql"):
        return _is_query(_part(request.held, BODIES))
    if path.endswith(_VENDOR_READS):
        return any(path.endswith(VENDOR_READS[vendor]) for vendor in _vendors(host, reported_by, frames))
    return "amazonaws.com" in host and is_aws_read(_action(text(_part(request.held, BODIES)) or ""))


_VENDOR_READS = tuple({path for paths in VENDOR_READS.values() for path in paths})


def is_aws_read(operation: str) -> bool:
    """Return whether an operation of AWS only reads, by the verb that its name begins with."""
    if operation in AWS_NO_READS:
        return False
    return any(operation.startswith(verb) and not operation[len(verb) :][:1].islower() for verb in AWS_READS)


def _action(form: str) -> str:
    """Return the operation of AWS's query protocol, ``Action=DescribeInstances&...``."""
    fields = form[:_LONGEST_BODY].split("&")
    return next((field.partition("=")[2] for field in fields if field.startswith("Action=")), "")


def _is_token(host: str, path: str) -> bool:
    *before, last = path.split("/")
    if last not in TOKEN_SEGMENTS:
        return False
    named = any("oauth" in segment or segment in ("connect", "openid-connect") for segment in before)
    return named or host.startswith(TOKEN_HOSTS)


def _is_bedrock(path: str) -> bool:
    segments = path.split("/")
    return len(segments) > 2 and segments[-1] in BEDROCK and segments[-3] == "model"


def _vendors(host: str, reported_by: tuple[BaseException, ...], frames: list[FrameType]) -> set[str]:
    """Return the vendors whose API this is: by its host, or by the client that the failure came through."""
    hosts = {vendor for name, vendor in VENDOR_HOSTS.items() if host == name or host.endswith(f".{name}")}
    modules = [_module(frame) for frame in frames]
    modules += [name for exc in reported_by if type(name := type(exc).__module__) is str]
    return hosts | ({module.partition(".")[0] for module in modules} & VENDOR_READS.keys())


def _address(held: Any) -> tuple[str, str]:
    """Return host and path of a request; each empty where it is not known."""
    url = text(held) or text(_part(held, URLS)) or ""
    scheme, separator, rest = url.partition("://")
    host = ""
    if separator and scheme.isalpha():
        host, slash, path = rest.partition("/")
        url = slash + path
    path = url.partition("?")[0].partition("#")[0].rstrip("/")
    return host.rpartition("@")[2].partition(":")[0].lower(), path


def _part(held: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these attributes, or variables of a frame, that is plain data or a URL."""
    variables = type(held).__name__ in ("dict", "FrameLocalsProxy")
    for name in names:
        found: Any = held.get(name) if variables else probe(held, name)
        if type(found).__module__.partition(".")[0] in ("httpx", "httpx2", "yarl"):
            found = obtained(found, "__str__")
        if text(found) is not None or real(found, DICT) or real(found, LIST):
            return found
    return None


# GraphQL


def _is_query(body: Any) -> bool:
    """Return whether a GraphQL request, or each of a list of them, asks for data and changes nothing."""
    given = text(body)
    if given is not None:
        body = _parsed(given)
    requests = list(LIST.__iter__(body)) if real(body, LIST) else [body]
    documents = [text(entry(request, "query")) for request in requests]
    return bool(documents) and all(document is not None and _only_queries(document) for document in documents)


def _parsed(body: str) -> Any:
    import json

    try:
        return json.loads(body) if len(body) <= _LONGEST_BODY else None
    except (ValueError, RecursionError):
        return None


def _only_queries(document: str) -> bool:
    """Return whether no operation of a GraphQL document is a mutation or a subscription."""
    import re

    if len(document) > _LONGEST_BODY:
        return False
    depth, names = 0, set[str]()
    tokens = re.finditer(
        r'"""(?:[^"\\]|\\"""|\\(?!""")|"(?!""))*"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|[{}()\[\]]|\w+', document
    )
    for token in tokens:
        word = token[0]
        if word in "{([":
            depth += 1
        elif word in "})]":
            depth -= 1
        elif depth == 0:
            names.add(word)
    return names.isdisjoint(("mutation", "subscription")) and ("query" in names or "{" in document)
