"""Find the requests behind a failure, and which of them must not be sent twice.

A request is looked for on the exception or response, in the frames that the exception came through, and
likewise on the errors that it wraps or was raised in the handling of. All of them count: one that must not be
repeated decides. ``_table_requests`` has the tables.

The rules of this file:

- Frames are read and never kept, and only those of the functions in the table; nothing is imported.
- Below a frame of a client, frames of other packages belong to the transport of the same request.
- An error that was already being handled when the attempt began is not part of the attempt.
- Foreign objects are read by the rules of ``_probe``.
"""

from __future__ import annotations

from .._base.headers import header
from .._base.loops import is_being_handled
from .._base.record import Record
from . import _table_requests as table
from ._judge import Judge, class_info
from ._probe import DICT, GROUP, LIST, TUPLE, call, get, inner, is_a, item, leaves, text, whole
from ._table_statuses import REPEATABLE_METHODS, RESPONSE_ATTRIBUTES, UNREPEATABLE_METHODS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any

_DEEPEST = 8  # errors within errors
_MOST_ERRORS = 10_000
_MOST_FRAMES = 2_000
_MOST_FOUND = 1_000  # redirects, commands of a pipeline, requests in one
_LONGEST_BODY = 256 * 1024  # characters that are searched for the kind of an operation

_URL_NAMES = frozenset(table.URLS)
_KNOWN_METHODS = REPEATABLE_METHODS | UNREPEATABLE_METHODS


class Sent(Record):
    """One request, or one command, that may have been sent."""

    method: str | None
    held: Any = None
    """Has its URL and its body: an object, or the variables of a frame."""
    headers: Any = None
    name: str = ""
    """An operation or a command, where the method does not decide."""
    repeatable: bool | None = None
    """None where method, headers and address decide."""


def find_requests(failure: object, unprocessed: bool = False, outside: int | None = None) -> Requests:
    """Return the requests behind a failure; an object that cannot be examined shows none.

    ``unprocessed`` says that the request that failed last had no effect. ``outside`` is for blocks: the id of
    the exception that was being handled when the block began.

    >>> find_requests(TimeoutError()).sent
    []
    """
    found = Requests(failure, unprocessed, outside)
    try:
        if not is_a(failure, BaseException):
            own = shown_by(failure)
            found.judge(own[:1], own[1:], (), [])
            return found
        found.search(failure, (), 0, [])
        if not found.sent:
            # Where nothing else shows a request, a function that was given a method and a URL does.
            sent = [_by_shape(frame) for exc in found.seen.values() for frame in _frames(exc)]
            found.judge([given for given in sent if given is not None][-1:], [], (), [])
    except Exception:  # noqa: BLE001, S110 - an object that lies about itself shows no request
        pass
    return found


class Requests:
    """The requests behind one failure. Searched errors are remembered, so that every cycle ends."""

    def __init__(self, failure: object, unprocessed: bool, outside: int | None) -> None:
        self._failure = failure
        self._unprocessed = unprocessed
        self._outside = outside
        self.seen: dict[int, BaseException] = {}
        self.sent: list[Sent] = []
        """The requests that were found, up to one that must not be repeated."""
        self.unrepeatable: Sent | None = None
        """The request that must not be repeated."""

    def search(
        self, exc: BaseException, above: tuple[BaseException, ...], depth: int, sending: list[FrameType]
    ) -> None:
        """Search an error, and the errors behind it.

        ``above`` are the errors that report the same failure, ``sending`` the frames below their request: an
        error that was caught there is of that request.
        """
        if id(exc) in self.seen or depth > _DEEPEST or len(self.seen) > _MOST_ERRORS:
            return
        self.seen[id(exc)] = exc
        frames, same, info = _frames(exc), (*above, exc), class_info(type(exc))
        packages = [name for name, _ in info.names]
        if frames and _is_among(frames[0], sending):
            sending = [*sending, *frames]
        else:
            first, sent = _in_frames(frames)
            sending = [] if first is None else frames[first:]
            # A client's own frames show all that its error could.
            own = [] if sending and _package(sending[0]) in packages else shown_by(exc)
            self.judge([*sent, *own[:1]], own[1:], same, frames)
        context, reported = exc.__context__, inner(exc, info.deep)
        behind: list[Any] = [(exc.__cause__, same, sending)]
        if is_a(exc, GROUP):
            behind[:0] = [(leaf, (), []) for leaf in leaves(exc)]
        behind += [(found, same, sending) for found in reported if found is not context]
        outside = self._outside
        if context is not None and not (
            is_being_handled(context) if outside is None else id(context) == outside
        ):
            # An error that reports the one in whose handling it was raised is the same failure.
            behind.append((context, same if _is_among(context, reported) else (), sending))
        for found, above, below in behind:
            if found is not None and self.unrepeatable is None:
                self.search(found, above, depth + 1, below)

    def judge(
        self, sent: list[Sent], before: list[Sent], same: tuple[BaseException, ...], frames: list[FrameType]
    ) -> None:
        """Add the requests of one error, and keep the first of them that must not be repeated.

        ``before`` were answered with a redirect: they had their effect whatever became of the last one.
        """
        last = sent[-1].method if sent else None
        for request in (*before, *sent):
            self.sent.append(request)
            if may_repeat_request(request, same[-1:], frames):
                continue
            # A redirect may change the method. The last request had no effect, not the one before.
            if _is_among(request, before) or request.method != last or not self._had_no_effect(same):
                self.unrepeatable = request
                return

    def _had_no_effect(self, same: tuple[BaseException, ...]) -> bool:
        """Return whether one of the errors that report a request shows that it had no effect.

        For the failure itself the caller has judged that already, and says so with ``unprocessed``.
        """
        if self._unprocessed and (not same or same[0] is self._failure):
            return True
        return True in [Judge().failure(exc).unprocessed for exc in same]


def _frames(exc: BaseException) -> list[FrameType]:
    """Return the frames that an exception came through, outermost first."""
    frames: list[FrameType] = []
    trace = exc.__traceback__
    while trace is not None and len(frames) < _MOST_FRAMES:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _is_among(one: object, others: Iterable[object]) -> bool:
    """Return whether an object is one of these, by identity."""
    # No generator: Python 3.13 crashes where it has no memory for a closure.
    return id(one) in map(id, others)


def _module(frame: FrameType) -> str:
    """Return the module of a frame; of a vendored copy, that of the original."""
    name = frame.f_globals.get("__name__")
    return name.rpartition("._vendor.")[2] if type(name) is str else ""


def _package(frame: FrameType) -> str:
    """Return the package of a frame, by its `_module`."""
    return _module(frame).partition(".")[0]


def _in_frames(frames: list[FrameType]) -> tuple[int | None, list[Sent]]:
    """Return the index of the first frame that shows a request, and the requests, the last one last.

    Frames below it of other packages are those of the transport, which sends the same request, and are
    skipped. None and an empty list if no frame shows a request.
    """
    first, package, sent = None, "", list[Sent]()
    for index, frame in enumerate(frames):
        readers = table.FRAMES.get(frame.f_code.co_name)
        if readers is None:
            continue
        where, top = readers.get(_module(frame)), _package(frame)
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


# What an exception or a response shows


def shown_by(failure: object) -> list[Sent]:
    """Return the requests that an exception or response shows: the last one, then those redirected to it.

    Redirects are found in ``history`` of requests and httpx responses, and in urllib3's ``retries``.
    """
    responses = [found for name in RESPONSE_ATTRIBUTES if (found := get(failure, name)) is not None]
    holders = [failure, *responses]
    last = _last_shown(failure, holders, responses)
    if last is None:
        return []
    shown = [last]
    # urllib3 forgets the method of a request that a 303 has redirected, which is a POST as a rule.
    passed: Any = get(get(failure, "retries"), "history")
    redirects: list[Any] = list(passed) if is_a(passed, TUPLE) else []
    if 303 in [whole(get(redirect, "status")) for redirect in redirects]:
        shown.append(Sent("POST"))
    for holder in holders:
        history: Any = get(holder, "history")
        if type(history) in (list, tuple):
            before = [_last_shown(found, [found], []) for found in history[:_MOST_FOUND]]
            shown += [sent for sent in before if sent is not None]
    return shown


def _last_shown(failure: object, holders: list[object], responses: list[object]) -> Sent | None:
    """Return the request that an exception or response shows; None if it shows none.

    ``holders`` may have a request as an attribute: the failure itself and its responses. If one of these
    requests has an idempotency key, its headers count, whichever of them has the method.
    """
    requests = [get(holder, name) for holder in holders for name in ("request", "request_info")]
    requests = [found for found in requests if found is not None]
    keyed = ([found for found in requests if _has_key(get(found, "headers"))] or [None])[0]
    for found in requests:
        method = method_of(get(found, "method"))
        if method is not None:
            return Sent(method, found, get(found if keyed is None else keyed, "headers"))
    if keyed is not None:
        return Sent(None, keyed, get(keyed, "headers"))
    # Last the response of the standard library, itself or inside one of urllib3, which remembers its request.
    own = [get(failure, "method"), *[get(response, "http_verb") for response in responses]]
    own += [get(get(failure, name), "_method") for name in ("fp", "_original_response")]
    for found in (*own, get(failure, "_method")):
        method = method_of(found)
        if method in _KNOWN_METHODS:  # any object may have such an attribute, so only HTTP's own count
            return Sent(method, failure)
    return None


def method_of(value: object) -> str | None:
    """Return the method of a request in capitals; ``None`` if the value is not one.

    >>> method_of("post"), method_of(b"GET"), method_of("not a method"), method_of(None)
    ('POST', 'GET', None, None)
    """
    method = text(value)
    if method is None or len(method) > 20 or not (method.isascii() and method.replace("-", "").isalpha()):
        return None
    return method.upper()


# One frame


def _sent(method: object, held: object, headers: object) -> list[Sent]:
    """Return the request with this method; none if it is not a method."""
    known = method_of(method)
    return [] if known is None else [Sent(known, held, headers)]


def _by_names(variables: Any, _: str) -> list[Sent]:
    """Return the request of a frame with variables named method, url, headers and body."""
    return _sent(variables.get("method"), variables, variables.get("headers"))


def _by_aiohttp(variables: Any, where: str) -> list[Sent]:
    """Return the request of aiohttp, after those that were redirected to it."""
    # A redirect changes the variable; the responses that redirected remember the method.
    history: Any = variables.get("history")
    before = [sent for response in history or () for sent in shown_by(response)[:1]]
    return [*before, *_by_names(variables, where)]


def _held(variables: Any, where: str) -> list[Sent]:
    """Return the request that a variable of the frame holds."""
    held = variables.get(where)
    # urllib's request may know its method only by its data.
    method = method_of(get(held, "method")) or call(held, "get_method")
    return _sent(method, held, get(held, "headers"))


def _by_response(variables: Any, _: str) -> list[Sent]:
    """Return the request of a response that is being read."""
    return shown_by(variables.get("self"))


def _by_http_client(variables: Any, _: str) -> list[Sent]:
    """Return the request of a connection or response of http.client, which shows neither URL nor headers."""
    method = method_of(variables.get("method")) or get(variables.get("self"), "_method")
    return _sent(method, None, variables.get("headers"))


def _by_stripe(variables: Any, _: str) -> list[Sent]:
    """Return the request of Stripe's client."""
    # The key in its headers is made up anew for each call, unless it was given in the options.
    key = item(variables.get("options"), "idempotency_key")
    return _sent(variables.get("method"), None, {"Idempotency-Key": key})


def _by_tornado(variables: Any, _: str) -> list[Sent]:
    """Return the request of tornado, which takes a URL or a request."""
    if text(variables.get("request")) is None:
        return _held(variables, "request")
    return [Sent(method_of(item(variables.get("kwargs"), "method")) or "GET", variables.get("request"))]


def by_aws(variables: Any, _: str) -> list[Sent]:
    """Return the operation of botocore, by name.

    It may be repeated if it only reads, if its HTTP method may, or if the caller gave a token by which AWS
    recognises the second one.
    """
    name, model = text(variables.get("operation_name")) or "", variables.get("operation_model")
    service = text(variables.get("service_name")) or "AWS"
    method = method_of(item(get(model, "http"), "method"))
    # A token that botocore fills in is another one for each call.
    filled_in, given = get(model, "idempotent_members") or (), variables.get("api_params")
    token = any(item(given, token) and token not in filled_in for token in table.AWS_TOKENS)
    repeatable = token or method in REPEATABLE_METHODS or is_aws_read(name)
    return [Sent(method, name=f"{service} {name}", repeatable=repeatable)]


def _by_redis(variables: Any, _: str) -> list[Sent]:
    """Return the command that a Redis client sends."""
    return [_command(variables.get("args"))]


def _by_pipeline(variables: Any, _: str) -> list[Sent]:
    """Return one command of a pipeline: one that must not be repeated, if there is one."""
    stack: Any = variables.get("stack") or get(variables.get("self"), "command_stack")
    commands = [_command(one[0] if is_a(one, TUPLE) else one.args) for one in stack[:_MOST_FOUND]]
    return ([sent for sent in commands if not sent.repeatable] or commands)[:1]


def _command(args: Any) -> Sent:
    """Return a Redis command; one that is in no table must not be repeated.

    >>> _command(["GET", "page"]).repeatable, _command(["INCR", "visits"]).repeatable
    (True, False)
    >>> _command(["SET", "lock", "1", "NX"]).repeatable  # the second one finds the lock taken
    False
    """
    given: list[Any] = [text(value) for value in args]
    name = (given[0] or "").upper()
    options = {option.upper() for option in given[2:] if option is not None and len(option) < 6}
    known = name.partition(" ")[0] in table.REDIS_REPEATABLE
    return Sent(None, name=f"Redis {name}", repeatable=known and table.REDIS_CONDITIONS.isdisjoint(options))


_READERS: dict[str, Callable[[Any, str], list[Sent]]] = {
    "variables": _by_names,
    "aiohttp": _by_aiohttp,
    "http.client": _by_http_client,
    "response": _by_response,
    "aws": by_aws,
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


def may_repeat_request(
    request: Sent, reported_by: tuple[BaseException, ...], frames: list[FrameType]
) -> bool:
    """Return whether a request may be sent twice: by its method, its key, or as a read.

    ``reported_by`` and ``frames`` are the errors and frames that show it: they tell whose client sent it.
    """
    if request.repeatable is not None:
        return request.repeatable
    if request.method in REPEATABLE_METHODS or _has_key(request.headers):
        return True
    return request.method == "POST" and _is_read(request, reported_by, frames)


def _has_key(headers: Any) -> bool:
    """Return whether headers have an idempotency key that the next attempt sends again.

    Keys that a client makes up anew for each call do not count.
    """
    key = (header(headers, "Idempotency-Key") or "").strip()
    return bool(key) and not key.startswith(table.MADE_UP_KEYS)


def _is_read(request: Sent, reported_by: tuple[BaseException, ...], frames: list[FrameType]) -> bool:
    """Return whether a POST only reads, by its operation: in the path, in a header or in the body."""
    operation = (header(request.headers, "X-Amz-Target") or "").rpartition(".")[2]
    if is_aws_read(operation):
        return True
    host, path = _address(request.held)
    if path.endswith(table.READS) or _is_token(host, path) or _is_bedrock(path):
        return True
    if path.endswith("/graphql"):
        return _is_query(_part(request.held, table.BODIES))
    if path.endswith(_VENDOR_READS):
        vendors = _vendors(host, reported_by, frames)
        return any(path.endswith(table.VENDOR_READS[vendor]) for vendor in vendors)
    return "amazonaws.com" in host and is_aws_read(_action(text(_part(request.held, table.BODIES)) or ""))


_VENDOR_READS = tuple({path for paths in table.VENDOR_READS.values() for path in paths})


def is_aws_read(operation: str) -> bool:
    """Return whether an operation of AWS only reads, by the verb that its name begins with.

    >>> is_aws_read("GetItem"), is_aws_read("PutItem"), is_aws_read("Getaway")
    (True, False, False)
    """
    verbs = [verb for verb in table.AWS_READS if operation.startswith(verb)]
    whole = any(not operation[len(verb) :][:1].islower() for verb in verbs)
    return whole and operation not in table.AWS_NO_READS


def _action(form: str) -> str:
    """Return the operation of AWS's query protocol; empty if the body is not such a form.

    >>> _action("Action=DescribeInstances&Version=2016-11-15")
    'DescribeInstances'
    """
    fields = form[:_LONGEST_BODY].split("&")
    return next((field.partition("=")[2] for field in fields if field.startswith("Action=")), "")


def _is_token(host: str, path: str) -> bool:
    """Return whether a path is that of an OAuth token endpoint.

    >>> _is_token("example.org", "/oauth2/token"), _is_token("example.org", "/users/token")
    (True, False)
    """
    *before, last = path.split("/")
    if last not in table.TOKEN_SEGMENTS:
        return False
    named = any("oauth" in segment or segment in ("connect", "openid-connect") for segment in before)
    return named or host.startswith(table.TOKEN_HOSTS)


def _is_bedrock(path: str) -> bool:
    """Return whether a path is that of an inference on Amazon Bedrock."""
    segments = path.split("/")
    return len(segments) > 2 and segments[-1] in table.BEDROCK and segments[-3] == "model"


def _vendors(host: str, reported_by: tuple[BaseException, ...], frames: list[FrameType]) -> set[str]:
    """Return the vendors whose API this is: by its host, or by the client that the failure came through."""
    known = table.VENDOR_HOSTS.items()
    hosts = {vendor for name, vendor in known if f".{host}".endswith(f".{name}")}
    modules = [str(type(exc).__module__) for exc in reported_by]  # anything may stand there
    packages = {*map(_package, frames), *[module.partition(".")[0] for module in modules]}
    return hosts | (packages & table.VENDOR_READS.keys())


def _address(held: Any) -> tuple[str, str]:
    """Return host and path of a request; each empty where it is not known.

    >>> _address("https://api.openai.com:443/v1/responses?stream=1")
    ('api.openai.com', '/v1/responses')
    """
    url = text(held) or text(_part(held, table.URLS)) or ""
    scheme, separator, rest = url.partition("://")
    host = ""
    if separator and scheme.isalpha():
        host, slash, path = rest.partition("/")
        url = slash + path
    path = url.partition("?")[0].partition("#")[0].rstrip("/")
    return host.rpartition("@")[2].partition(":")[0].lower(), path


def _part(held: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these attributes, or variables of a frame, that is plain data or a URL.

    URLs of httpx and yarl are objects of their own, and become text.
    """
    variables = type(held).__name__ in ("dict", "FrameLocalsProxy")
    for name in names:
        found: Any = held.get(name) if variables else get(held, name)
        if type(found).__module__.partition(".")[0] in ("httpx", "httpx2", "yarl"):
            found = call(found, "__str__")
        if text(found) is not None or is_a(found, DICT) or is_a(found, LIST):
            return found
    return None


# GraphQL


def _is_query(body: Any) -> bool:
    """Return whether a GraphQL request, or each of a list of them, asks for data and changes nothing.

    >>> _is_query({"query": "{ user { name } }"}), _is_query('{"query": "mutation { rename }"}')
    (True, False)
    """
    given = text(body)
    if given is not None:
        import json

        try:
            body = json.loads(given) if len(given) <= _LONGEST_BODY else None
        except (ValueError, RecursionError):
            return False
    requests = body if is_a(body, LIST) else [body]
    documents = [text(item(request, "query")) for request in requests]
    return bool(documents) and all(document is not None and _only_queries(document) for document in documents)


def _only_queries(document: str) -> bool:
    """Return whether no operation of a GraphQL document is a mutation or a subscription.

    The word counts only outside of braces, strings and comments, where operations begin.
    """
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
