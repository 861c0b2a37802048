"""Mask secrets in text: values after the name of a secret, and tokens that are known by their shape.

`masked_text` is for messages, tracebacks and log lines; `json_safe` uses `strength` and `hides` for the keys
and values of a payload. `table_secrets` has the names, shapes and notations.

- A name tells `NOTHING`, `WEAK` (its value is a secret if it looks random) or `STRONG`. It is split into
  words, so ``dbPassword`` and ``db-password`` tell the same.
- A value is masked unless it is a placeholder, a state such as ``expired``, or the next word of a sentence.
- Every failing call passes through here. A text without a trace of a secret is returned after one search.
- No pattern backtracks, so the time is linear in the length of the text. Patterns are compiled on first use.
"""

from __future__ import annotations

from functools import lru_cache, partial

from . import table_secrets as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Match, Pattern

    Folded = tuple[str, ...]

MASK = "***"

# What a name says of its value: nothing; it is secret if it looks random; it is secret.
NOTHING, WEAK, STRONG = 0, 1, 2


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Return whether values under this name are masked; ``more`` are further words to look for.

    >>> is_secret("dbPassword"), is_secret("X-Api-Key"), is_secret("token_type"), is_secret("author")
    (True, True, False, False)
    """
    return strength(name, folded_names(more)) == STRONG


def folded_names(names: Iterable[str]) -> Folded:
    """Return names as they are compared, without those that are only punctuation."""
    return tuple([folded for name in names if (folded := fold(name))])


def fold(name: str) -> str:
    """Return the letters and digits of a name, case-folded."""
    # Not lower(), which writes a sigma in two ways.
    return "".join([c for c in name.casefold() if c.isalnum()])


def strength(name: str, more: Folded = ()) -> int:
    """Return what a name says of its value: `NOTHING`, `WEAK` or `STRONG`."""
    if more and _holds(fold(name), more):
        return STRONG
    # Very long texts are not names, and are not cached.
    return _strength(name) if len(name) <= 100 else _strength.__wrapped__(name)


@lru_cache(500)
def _strength(name: str) -> int:
    """Return what the words of a name say of its value, the last word first.

    A last word such as ``type`` or ``expiry`` makes the name say something about a secret instead.

    >>> _strength("accessToken"), _strength("token_type"), _strength("sort_key"), _strength("key")
    (2, 0, 0, 1)
    """
    words = [word.lower() for word in pattern("parts").findall(name)]
    folded = fold(name)
    for place in range(len(words) - 1, -1, -1):
        word = words[place]
        both = words[place - 1] + word if place else ""
        if word in table.WORDS or both in table.PHRASES or word.endswith(table.ENDINGS):
            return NOTHING if words[place + 1 :] and words[-1] in table.DETAILS else STRONG
    if any(fragment in folded for fragment in table.FRAGMENTS):
        return NOTHING if words and words[-1] in table.DETAILS else STRONG
    if words and words[-1] in table.WEAK and (len(words) < 2 or words[-2] not in table.NOT_KEYS):
        return WEAK
    return NOTHING


def hides(name: str, value: str, tells: int, *, quoted: bool = True) -> bool:
    """Return whether a text is masked under a name of this strength.

    ``quoted`` says that the text stands in quotes, or is a value by itself: it is whole then. Without quotes
    it is one word of a message, which may be the next word of a sentence.

    >>> hides("password", "hunter2", STRONG), hides("password", "expired", STRONG)
    (True, False)
    """
    bare = value if quoted else value.rstrip(".,;:!?)]}>\"'`")
    if tells == WEAK:
        return looks_random(bare)
    lower = bare.casefold()
    # Quoted, the first word of a sentence would be a value.
    if not lower or lower in table.STATES or (not quoted and lower in table.PLAIN):
        return False
    words = {word.lower() for word in pattern("parts").findall(name)}
    if lower.isdecimal() and ("tokens" in words or words == {"pass"}):
        return False  # a count
    if words & table.NUMBERS and sum([c.isdigit() for c in bare]) < 3:
        return False
    # `token=token`, `--token TOKEN`: code and usage, not values.
    if not quoted and bare.isidentifier() and fold(bare) == fold(name):
        return False
    return len(value) > 200 or not pattern("placeholder").fullmatch(value)


def looks_random(text: str) -> bool:
    """Return whether a text looks like a key and not like a word, a path, a date or a UUID.

    >>> looks_random("x7Kq9Lm2Zp4Rt8Vw"), looks_random("customer-account-2024")
    (True, False)
    """
    if len(text) < 16 or not pattern("keylike").fullmatch(text) or pattern("uuid").fullmatch(text):
        return False
    # Of random letters and digits every second or third differs in kind from the one before it.
    kinds = [0 if c.isdigit() else 1 if c.islower() else 2 if c.isupper() else 3 for c in text[:200]]
    changes = 0
    for one, other in zip(kinds, kinds[1:], strict=False):  # noqa: RUF007 - itertools is an import
        changes += one != other and 3 not in (one, other)
    return 0 in kinds and changes >= len(kinds) / 5


def masked_text(text: str, more: Iterable[str] = ()) -> str:
    """Return the text with its secrets masked; ``more`` are further words that mark the name of a secret.

    >>> masked_text('login as bob with password=hunter2 failed')
    'login as bob with password=*** failed'
    >>> masked_text('GET https://bob:hunter2@host/?api_key=abc Authorization: Bearer abc')
    'GET https://***@host/?api_key=*** Authorization: ***'
    """
    names, lower = folded_names(more), text.casefold()
    # Each step runs only if the text holds a trace of what it looks for; most messages hold none.
    if _holds(lower, ("-----begin", "putty-user")):
        text = pattern("block").sub(MASK, text)
    if _holds(lower, table.NAMES) or (names and _holds(fold(text), names)):
        mask = partial(_mask_paired, names)
        text = _mask_named(pattern("plist").sub(mask, pattern("paired").sub(mask, text)), names)
    if _holds(lower, table.SAID):
        text = pattern("said").sub(_mask_said, text)
    for trace, syntax in table.SYNTAX:
        if trace in lower:
            text = _compiled(syntax).sub(_mask_group, text)
    if _holds(lower, ("basic", "bearer")):
        text = pattern("scheme").sub(_mask_scheme, text)
    if "://" in lower:
        text = pattern("odd_url").sub(f"://{MASK}@", pattern("url").sub(_mask_user, text))
    for word in text.split():
        if len(word) >= 12 and not word.isalpha():  # long enough for a token
            return _compiled(_TOKENS).sub(MASK, text)
    return text


def _holds(text: str, traces: Iterable[str]) -> bool:
    """Return whether a text holds one of these traces."""
    # No generator: Python 3.13 crashes where it has no memory for a closure, and this is asked of any error.
    return True in map(text.__contains__, traces)


def _mask_group(found: Match[str]) -> str:
    """Return the text of a match with its group ``secret`` masked, within its quotes."""
    start, end = found.start("secret") - found.start(), found.end("secret") - found.start()
    quote = found["secret"][:1] if found["secret"][:1] in ("'", '"') else ""
    return f"{found[0][:start]}{quote}{MASK}{quote}{found[0][end:]}"


def _mask_paired(more: Folded, found: Match[str]) -> str:
    """Mask the value of ``name: DB_PASSWORD, value: ...`` and the like."""
    tells = strength(found["name"], more)
    return _mask_group(found) if tells and hides(found["name"], found["secret"], tells) else found[0]


def _mask_said(found: Match[str]) -> str:
    """Mask the value of ``the password is ...`` and ``token ...``, where it does not read as a sentence."""
    value = found["secret"].rstrip(".,;:?)")
    quoted, said, verb = bool(found["quote"]), found["verb"].strip(), found["verb"].strip(" :")
    if not value or value.casefold() in table.PLAIN or MASK in value:
        return found[0]
    digits, letters = any(c.isdigit() for c in value), any(c.isalpha() for c in value)
    if found["password"]:
        mixed = len(value) >= 6 and digits and letters
        secret = mixed or quoted or said.endswith(":") or (bool(verb) and not value.isalpha())
    else:
        secret = looks_random(value) or ((quoted or bool(verb)) and len(value) >= 8 and digits and letters)
    if not secret:
        return found[0]
    start = found.start("secret") - found.start()
    return f"{found[0][:start]}{MASK}{found[0][start + len(value) :]}"


def _mask_named(text: str, more: Folded) -> str:
    """Mask values after the name of a secret and something like ``=``.

    Goes through the text from name to name; ``kept`` holds the pieces between the values that are masked.
    """
    named = pattern("named")
    kept: list[str] = []
    done = here = 0
    while (found := named.search(text, here)) is not None:
        here = found.end()
        name = found["option"] or found["tag"] or found["word"]
        tells = strength(name, more)
        if tells != STRONG and text[found.start() - 1 : found.start()] == " ":
            tells = _tells_with_word_before(text, name, found.start(), tells)
        if not tells or (tells == WEAK and not pattern("long").match(text, here)):
            if found["tag"]:
                here = found.end("tag")  # its attributes are names as well
            continue
        end, opening, closing = _value(text, here, name, found.group(), tells)
        if end > here:
            kept += text[done:here], opening, MASK, closing
            done = here = end
    return "".join([*kept, text[done:]]) if kept else text


def _tells_with_word_before(text: str, name: str, start: int, tells: int) -> int:
    """Return the strength of a name in prose, where it may be two words: `API key`, but also `sort key`."""
    before = text[max(0, start - 30) : start].split()
    word = before[-1].lower() if before else ""
    if word + name.lower() in table.PHRASES:
        return STRONG
    return NOTHING if word in table.NOT_KEYS else tells


def _value(text: str, start: int, name: str, found: str, tells: int) -> tuple[int, str, str]:
    """Return where the value that starts here ends, and its quotes; ``start`` if it is not masked.

    A value is quoted, in brackets, or ends where the pattern for its kind does (`_kind_of_value`).
    """
    nothing = start, "", ""
    if pattern("masked").match(text, start):
        return nothing
    quoted = pattern("quoted").match(text, start)
    if quoted is not None:
        opening = quoted["open"] or quoted["escaped"] or ""
        start = quoted.end("open" if quoted["open"] else "escaped")
        inside = text[start : quoted.end()].removesuffix(opening)
        return (quoted.end(), opening, opening) if hides(name, inside, tells) else nothing
    if text[start : start + 1] in ("(", "[", "{") and not pattern("template").match(text, start):
        return (_closing_bracket(text, start), "", "") if tells == STRONG else nothing
    plain = pattern(_kind_of_value(text, start, name, found, tells)).match(text, start)
    if plain is None:
        return nothing
    first = plain[0].split(None, 1)[0] if plain[0].strip() else ""
    if first.casefold() not in _SCHEMES:
        # `token: ...` may be followed by a sentence or a status; a password may be words.
        prose = tells == STRONG and found.endswith(": ") and "pass" not in name.lower()
        if prose and pattern("sentence").match(text, start):
            return nothing
        if not hides(name, first, tells, quoted=False):
            return nothing
    return plain.end(), "", ""


_SCHEMES = ("basic", "bearer", "digest", "token", "negotiate")


def _kind_of_value(text: str, start: int, name: str, found: str, tells: int) -> str:
    """Return the name of the pattern for a value without quotes or brackets."""
    if tells == WEAK:
        return "piece"
    if pattern("yaml").match(text, start):
        return "yaml"
    if found.endswith(">"):
        return "element"
    return "line" if fold(name).endswith(table.LINES) else "word"


def _closing_bracket(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one here, or the end.

    Brackets in quotes do not count.
    """
    depth = 0
    for found in pattern("bracket").finditer(text, start):
        if found.group() in ("(", "[", "{"):
            depth += 1
        elif found.group() in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return found.end()
    return len(text)


# Compiled on first use. All quantifiers that could backtrack are possessive or bounded.
_PATTERNS = {
    "parts": r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+",
    # Letters and digits as keys have them; an address, a host and a file name have something else.
    "keylike": r"[\w+/=%~-]+",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    # <unset>, ${TOKEN}, {{ token }}, {token}, Optional[str]; self.token, os.environ["TOKEN"]; get_token()
    "placeholder": (
        r"""<[\w -]+>[.,;)]*|\$\{\w+\}|\$[A-Z][A-Z0-9_]+|\{\{.*|(?:\w+ )?\{[A-Za-z_][\w.]*\}[\"')]*"""
        r"|(?:self|cls|os|settings|config|requests?|response|args|options)\.[A-Za-z_][\w.]*(?:[\[(].*)?[),]*"
        r"|(?:Optional|[Ll]ist|Union)\[\w+\][),]*"
        r"|[A-Za-z_][\w.]*\([\w., =]*\)[),]*|[A-Za-z_][\w.]*\.\w*(?i:password|passwd|token|secret|key)[),]*"
    ),
    "block": (
        r"(?s)-----BEGIN [A-Z ]{0,60}KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,60}KEY(?: BLOCK)?-----|\Z)"
        r"|PuTTY-User-Key-File-\d:.*?(?:Private-MAC:[^\n]*+|\Z)"
    ),
    # --name value; <name>value; name=value, "name": value, user[name]=value; ('name', 'value')
    "named": (
        r"(?i)(?<![\w-])--?(?P<option>\w[\w-]*+)\s++(?:<<<\s*+)?(?=[^\s-])"
        r"|<(?:[\w.-]{1,60}+:)?+(?P<tag>[\w-]++)(?:\s[^<>]*+)?>"
        r"""|(?<![\w-])(?P<word>[\w-]++)(?:"""
        r"""(?:%5D)?[]"'\\)]*+\s*+[:=]++>?\s*+"""
        r"""|\\*+["']\s*+,\s*+(?=b?\\*+["'])(?!["'][\w .-]{1,60}["']\s{0,9}:))"""
    ),
    # name: NAME, value: VALUE; <add key="NAME" value="VALUE">; <property name="NAME">VALUE; multipart forms
    "paired": (
        r"""(?i)\b(?:name|key|header|parameterkey|field)["'\\]{0,3}\s{0,9}[:=]\s{0,9}["'\\]{0,3}"""
        r"""(?P<name>[\w.:-]{1,100})["'\\]{0,3}(?:\s{0,9}>|\r?\n\r?\n|,?\s{1,40}["'\\]{0,3}(?:parameter)?value"""
        r"""["'\\]{0,3}\s{0,9}[:=]\s{0,9}["'\\]{0,3})(?P<secret>(?<=["'])[^"'\\\n]++|(?<=>)[^<]++|[^\s"'<>\\]++)"""
    ),
    # <key>NAME</key><string>VALUE
    "plist": r"(?i)<key>(?P<name>[\w.:-]{1,100})</key>\s{0,40}<\w{1,20}>(?P<secret>[^<]++)",
    # the password is VALUE; token 'VALUE'; password for ann: VALUE; PASSWORD('VALUE')
    "said": (
        r"(?i)(?<![\w-])(?:(?P<password>pass(?:word|wd|code|phrase|wort))|token|secret|session|jwt|credential"
        r"|(?:api|access|secret|private|account)?[ _-]?key)(?P<verb>(?:\s{1,9}(?:is|was|are|set to|value"
        r"|provided|supplied|given|used|sent|incorrect|wrong|invalid)|\s{1,9}(?:for|of)\s{1,9}[^\s:]{1,60}+(?=:))?:?)"
        r"""\s{0,9}\(?(?P<quote>["'`]?)(?P<secret>[^\s"'`()]++)"""
    ),
    "quoted": (
        r"(?si)(?:[\w.]{0,40}\(|[bfru]{0,2})(?:"
        r"""(?P<open>["'])(?:(?!(?P=open))[^\\]|\\.|(?P=open)(?P=open))*+(?:(?P=open)|\\?\Z)|"""
        r"""(?P<escaped>\\++["'])(?:(?!(?<!\\)(?P=escaped)).)*+(?:(?P=escaped)|\Z))"""
    ),
    "bracket": r"""(?s)"(?:[^"\\]|\\.)*+(?:"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z)|[][(){}]""",
    # What follows a name that is not a value: the next words of a sentence, or an HTTP status.
    "sentence": r"[a-z]{2,12} [a-z]|[1-5]\d\d(?! ?\d)(?!\w)",
    # {{ token }}, f"{token}"
    "template": r"\{\{|\{[A-Za-z_][\w.]*+\}",
    "masked": r"\*\*\*(?!\S)",
    # At least as much as `looks_random` asks for, quoted or not.
    "long": r"\W{0,9}[\w+/=%~-]{16}",
    "element": r"[^<]++",
    "line": r"[^\r\n]++",
    # A text in a YAML document: all lines that are indented.
    "yaml": r"[|>][+-]?\d?[+-]?[ \t]*+\r?\n(?:[ \t]++[^\n]*+\n?)++",
    "piece": r"[^\s&;,\"'<>()\\]++",
    "word": r"(?i)(?:(?:basic|bearer|digest|negotiate|token)\s++)?+\S++(?: \d{2,6}+\b)*+",
    "scheme": r"(?i)(?<![\w-])(basic|bearer)(\s++|%20|\+)([^\s\"'\\<>]++)(\"?)",
    "url": r"://([^\s/?#\"'<>]++)",
    "odd_url": r"://[^\s/?#@:]{0,200}+:[^\s@]{1,200}+@",
    # The host of a URL that was split: user:password@host; not mailto:ann@host, image:tag@sha256
    "netloc": (
        r"(?!(?:mailto|sips?|acct|xmpp|to|from|b?cc|e?mail|user):)[^\s:/@]{0,99}:[^\s@/]{1,200}@(?!sha256:)"
        r"([\w.\[\]:-]+)"
    ),
}  # fmt: skip


_TOKENS = rf"(?<![A-Za-z0-9])(?:{'|'.join([f'(?:{start}){rest}' for start, rest in table.TOKENS])})"


def pattern(name: str) -> Pattern[str]:
    """Return one of the patterns, compiled."""
    return _compiled(_PATTERNS[name])


@lru_cache(None)
def _compiled(text: str) -> Pattern[str]:
    """Compile a pattern, once."""
    import re

    return re.compile(text)


def _mask_scheme(found: Match[str]) -> str:
    """Mask ``Bearer ...``, but not ``bearer token`` or ``Basic realm="..."``."""
    value = found[3]
    word = value.rstrip(".,;:!?)")
    plain = word.casefold() in table.PLAIN or (value.endswith("=") and found[4])
    if found[1].lower() == "basic":  # base64 is not in small letters alone
        plain = plain or (word.isalpha() and word.islower())
    return found[0] if plain else f"{found[1]}{found[2]}{MASK}{found[4]}"


def _mask_user(found: Match[str]) -> str:
    """Mask user and password in front of the host of a URL."""
    user, at, host = found[1].rpartition("@")
    return f"://{MASK}@{host}" if at and user else found[0]
