"""Tables of requests: where clients keep them while they send them, and which POSTs only read.

``FRAMES`` says where a request is found in the frames of a traceback. ``READS`` and its neighbours name
operations that are sent as POST and may be repeated: most vendors' own clients repeat them as well. To teach
redouble one more client, add a line to ``FRAMES``; one more read, a line to ``READS``. An operation in no
table counts as a POST.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_HTTP_CLIENT = {"http.client": "http.client"}
_REDIS = [
    f"{package}.{module}"
    for package in ("redis", "valkey")
    for module in ("client", "asyncio.client", "cluster", "asyncio.cluster")
]

# Function, module, and where its frame has the request: "variables" named method, url, headers and so on, the
# reader of that name in _requests, or else one variable that holds the whole request.
FRAMES: Mapping[str, Mapping[str, str]] = {
    "_request": {"aiohttp.client": "aiohttp"},
    "send": {
        "httpx._client": "request",
        "httpx2._client": "request",
        "requests.sessions": "request",
        "requests.adapters": "request",
        "niquests.sessions": "request",
        "niquests.adapters": "request",
        "niquests._async": "request",
        **_HTTP_CLIENT,
    },
    "_send_handling_redirects": {"httpx._client": "request", "httpx2._client": "request"},
    "handle_request": {
        "httpcore._sync.connection_pool": "request",
        "httpcore2._sync.connection_pool": "request",
        "httpcore._sync.connection": "request",
        "httpcore2._sync.connection": "request",
    },
    "handle_async_request": {
        "httpcore._async.connection_pool": "request",
        "httpcore2._async.connection_pool": "request",
        "httpcore._async.connection": "request",
        "httpcore2._async.connection": "request",
    },
    "urlopen": {"urllib3.connectionpool": "variables"},
    "_make_request": {"urllib3.connectionpool": "variables"},
    "open": {"urllib.request": "req"},
    "do_open": {"urllib.request": "req"},
    "request": {
        "urllib3._request_methods": "variables",
        "urllib3.request": "variables",
        "httplib2": "variables",
        "stripe._api_requestor": "stripe",
        **_HTTP_CLIENT,
    },
    "request_async": {"stripe._api_requestor": "stripe"},
    "execute": {
        "googleapiclient.http": "self",
        **dict.fromkeys(_REDIS, "pipeline"),
    },
    "fetch": {"tornado.httpclient": "tornado"},
    "_make_api_call": {"botocore.client": "aws", "aiobotocore.client": "aws"},
    "execute_command": dict.fromkeys(_REDIS, "redis"),
    "_execute_command": dict.fromkeys(_REDIS, "redis"),
    "immediate_execute_command": dict.fromkeys(_REDIS, "redis"),
    # Responses that are being read.
    "generate": {"requests.models": "response"},
    "_error_catcher": {"urllib3.response": "response"},
    "read": {"aiohttp.client_reqrep": "response", **_HTTP_CLIENT},
    # http.client by itself: the connection and the response remember the method.
    **dict.fromkeys(("getresponse", "begin", "endheaders", "readinto"), _HTTP_CLIENT),
}

# Names of the variables and attributes that hold a part of a request, in the order in which they are read.
URLS = ("url", "uri", "full_url", "str_or_url", "request_uri", "target", "path", "endpoint", "resource")
BODIES = ("body", "data", "json", "content")

# Keys that a client makes up anew for each call: the next attempt has another one, so they protect nothing.
MADE_UP_KEYS = ("stainless-python-retry-",)


# Reads that are sent as POST, by the end of their path.

# Clients of language models repeat inference and embeddings after a lost connection, 408, 409, 429 and 5xx:
# openai, anthropic, groq and together twice by default (DEFAULT_MAX_RETRIES), cohere twice (max_retries),
# google-genai and mistralai where they are told to (HttpRetryOptions, RetryConfig). Elasticsearch and
# OpenSearch take the same search by GET and by POST.
READS = (
    "/chat/completions",
    "/embeddings",
    "/moderations",
    # google-genai, Vertex AI
    ":generateContent",
    ":streamGenerateContent",
    ":embedContent",
    ":batchEmbedContents",
    ":countTokens",
    ":predict",
    ":rawPredict",
    ":streamRawPredict",
    # Elasticsearch, OpenSearch
    "/_search",
    "/_search/template",
    "/_msearch",
    "/_msearch/template",
    "/_count",
    "/_mget",
    "/_field_caps",
    "/_validate/query",
    "/_termvectors",
    "/_mtermvectors",
    "/_rank_eval",
    "/_analyze",
)
# Where the end of the path alone does not tell: of this vendor's host, or sent by its client.
_OPENAI = (
    "/responses",
    "/completions",
    "/images/generations",
    "/audio/transcriptions",
    "/audio/translations",
    "/audio/speech",
)
_COHERE = ("/chat", "/embed", "/rerank", "/classify", "/generate", "/summarize", "/tokenize", "/detokenize")
VENDOR_READS: Mapping[str, tuple[str, ...]] = {
    "openai": _OPENAI,
    "groq": _OPENAI,
    "together": (*_OPENAI, "/rerank"),
    "anthropic": ("/v1/messages", "/v1/messages/count_tokens", "/v1/complete"),
    "mistralai": (
        "/fim/completions",
        "/agents/completions",
        "/ocr",
        "/classifications",
        "/audio/transcriptions",
    ),
    "cohere": _COHERE,
}
VENDOR_HOSTS: Mapping[str, str] = {
    "api.openai.com": "openai",
    "openai.azure.com": "openai",
    "api.groq.com": "groq",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.anthropic.com": "anthropic",
    "api.mistral.ai": "mistralai",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
}
# Amazon Bedrock: POST /model/ID/OPERATION.
BEDROCK = frozenset({"invoke", "invoke-with-response-stream", "converse", "converse-stream"})
# OAuth 2.0 (RFC 6749 3.2): a token that is asked for twice is two tokens, which harms nobody.
TOKEN_SEGMENTS = frozenset({"token", "access_token"})
TOKEN_HOSTS = ("oauth2.", "accounts.", "login.")

# AWS names its operations by what they do; all SDKs of AWS repeat all of them.
AWS_READS = (
    "Get",
    "List",
    "Describe",
    "Query",
    "Scan",
    "Search",
    "Select",
    "BatchGet",
    "Head",
    "Lookup",
    "Check",
    "Estimate",
    "Validate",
    "Preview",
    "Simulate",
    "TransactGet",
    "AssumeRole",
    "Decode",
    "Converse",
    "InvokeModel",
)
# Hands out a task: an answer that is lost loses the task.
AWS_NO_READS = frozenset({"GetActivityTask"})
# Parameters by which AWS recognises a request that it has seen.
AWS_TOKENS = frozenset(
    {"ClientToken", "ClientRequestToken", "IdempotencyToken", "MessageDeduplicationId", "clientToken"}
)

# Redis commands whose repetition changes neither the data nor an answer that decisions are based on. What
# adds, pops, moves or answers "was it new?" is not here, nor are scripts.
_REDIS_COMMANDS = """
    GET MGET STRLEN GETRANGE SUBSTR LCS GETBIT BITCOUNT BITPOS BITFIELD_RO EXISTS TTL PTTL EXPIRETIME
    PEXPIRETIME TYPE KEYS SCAN RANDOMKEY DBSIZE DUMP OBJECT SORT_RO HGET HMGET HGETALL HKEYS HVALS HLEN
    HEXISTS HSTRLEN HSCAN HRANDFIELD HTTL HPTTL HEXPIRETIME HPEXPIRETIME LRANGE LLEN LINDEX LPOS SMEMBERS
    SISMEMBER SMISMEMBER SCARD SRANDMEMBER SSCAN SINTER SUNION SDIFF SINTERCARD ZRANGE ZRANGEBYSCORE
    ZRANGEBYLEX ZREVRANGE ZREVRANGEBYSCORE ZREVRANGEBYLEX ZCARD ZCOUNT ZLEXCOUNT ZSCORE ZMSCORE ZRANK
    ZREVRANK ZSCAN ZINTER ZUNION ZDIFF ZINTERCARD ZRANDMEMBER GEOPOS GEODIST GEOHASH GEOSEARCH GEORADIUS_RO
    GEORADIUSBYMEMBER_RO PFCOUNT XRANGE XREVRANGE XLEN XREAD XPENDING XINFO EVAL_RO EVALSHA_RO FCALL_RO PING
    ECHO TIME INFO MEMORY COMMAND ROLE LASTSAVE WAIT HELLO AUTH SELECT READONLY READWRITE WATCH UNWATCH
    SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE PUBSUB SET MSET SETEX PSETEX
    SETRANGE HSET HMSET LSET DEL UNLINK HDEL EXPIRE PEXPIRE EXPIREAT PEXPIREAT TOUCH JSON.GET JSON.MGET
    JSON.TYPE JSON.SET JSON.DEL FT.SEARCH FT.INFO FT.AGGREGATE TS.GET TS.RANGE TS.MRANGE
"""
REDIS_REPEATABLE = frozenset(_REDIS_COMMANDS.split())
# Options that make a repetition answer, or do, something else.
REDIS_CONDITIONS = frozenset({"NX", "XX", "GT", "LT", "GET", "FNX", "FXX", "IFEQ", "IFNE", "IFDEQ", "IFDNE"})
