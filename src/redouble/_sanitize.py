"""Text without secrets: what stands beside a telling name, or looks like a key, is masked.

One rule says which names are telling, for keys of a payload and for names within a text alike. It would
rather mask too much. Every pattern moves forward only, so the time is linear in the length of the text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from re import Match, Pattern

    Folded = tuple[str, ...]

MASK = "***"

# Anywhere in a name, once case, hyphens and underscores are gone.
_ANYWHERE = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey", "authorization",
    "cookie", "session", "credential", "privatekey", "accesskey", "signingkey", "encryptionkey", "signature",
    "cardnumber", "creditcard", "debitcard", "securitycode", "cvv", "cvc",
)  # fmt: skip
# As a part of a name, between hyphens, underscores and humps: within longer words they mean nothing.
_PARTS = frozenset({
    "auth", "bearer", "card", "csrf", "iban", "jwt", "otp", "pass", "pin", "pw", "sid", "ssn", "xsrf",
})  # fmt: skip
# In prose they are two words.
_TWO_WORDS = frozenset({
    "accesskey", "apikey", "cardnumber", "encryptionkey", "privatekey", "secretkey", "securitycode",
    "signingkey",
})  # fmt: skip
# How keys begin that say whose they are.
_PREFIXES = "[prs]k[-_]|gh[oprsu]_|github_pat_|glpat-|xox[a-z]-|AIza"
# Headers whose values have blanks in them.
_HEADERS = ("authorization", "cookie")


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a value under this name is to be masked; ``more`` are further words to look for.

    >>> is_secret("dbPassword"), is_secret("X-Api-Key"), is_secret("discard"), is_secret("author")
    (True, True, False, False)
    """
    return _is_secret(name, folded_names(more))


def folded_names(names: Iterable[str]) -> Folded:
    """Names in the form in which they are compared; one that is nothing but punctuation tells nothing."""
    return tuple([folded for name in names if (folded := _fold(name))])


def _fold(name: str) -> str:
    # Not lower(), which writes a sigma in two ways.
    return "".join([c for c in name.casefold() if c.isalnum()])


def _is_secret(name: str, more: Folded) -> bool:
    folded = _fold(name)
    if any(word in folded for word in (*_ANYWHERE, *more)):
        return True
    return not _PARTS.isdisjoint([part.lower() for part in _patterns().parts.findall(name)])


def masked_text(text: str, more: Iterable[str] = ()) -> str:
    """The text with its secrets masked; ``more`` are further words that make a name telling.

    >>> masked_text('login as bob with password=hunter2 failed')
    'login as bob with password=*** failed'
    >>> masked_text('GET https://bob:hunter2@host/?api_key=abc Authorization: Bearer abc')
    'GET https://***@host/?api_key=*** Authorization: ***'
    """
    names = folded_names(more)
    if not _may_hold_secrets(text, names):
        return text
    patterns = _patterns()
    text = _without_named(patterns.block.sub(MASK, text), names)
    for shape, replacement in patterns.shapes:
        text = shape.sub(replacement, text)
    return text


# Without one of these, or a telling name, there is nothing in a text that could be masked.
_TRACES = (
    "-----begin", "basic", "bearer", "://", "akia", "asia", "aida", "aroa", "agpa", "eyj", "aiza",
    "k-", "k_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox",
)  # fmt: skip
_WORDS = (*_ANYWHERE, *sorted(_PARTS))
_NO_LETTERS = {code: None for code in range(128) if not chr(code).isalnum()}


def _may_hold_secrets(text: str, more: Folded) -> bool:
    """Says quickly that there are none, which is so for most messages of errors."""
    lower = text.casefold()
    # Folding leaves only letters and figures, and so does dropping all other ASCII from ASCII.
    flat = lower.translate(_NO_LETTERS) if text.isascii() else _fold(text)
    return any(trace in lower for trace in _TRACES) or any(word in flat for word in (*_WORDS, *more))


def _without_named(text: str, more: Folded) -> str:
    """Values that stand after a telling name and something like ``=``."""
    named = _patterns().named
    kept: list[str] = []
    done = here = 0
    while (found := named.search(text, here)) is not None:
        here = found.end()
        if not _tells(text, found, more):
            continue
        end, opening, closing = _value(text, here, found.group())
        if end > here:
            kept += text[done:here], opening, MASK, closing
            done = here = end
    return "".join([*kept, text[done:]])


def _tells(text: str, found: Match[str], more: Folded) -> bool:
    name, start = found["option"] or found["tag"] or found["word"], found.start()
    if _is_secret(name, more):
        return True
    before = text[max(0, start - 30) : start].split()
    return bool(before) and _fold(before[-1] + name) in _TWO_WORDS


def _value(text: str, start: int, name: str) -> tuple[int, str, str]:
    """Where the value that starts here ends, and the quotes around it."""
    patterns = _patterns()
    if patterns.masked.match(text, start):
        return start, "", ""
    quoted = patterns.quoted.match(text, start)
    if quoted is not None:
        opening = quoted["open"] or quoted["escaped"] or ""
        return quoted.end(), opening, opening
    if text[start : start + 1] in ("(", "[", "{"):
        return _closing_bracket(text, start), "", ""
    if name.endswith(">"):
        plain = patterns.element.match(text, start)
    elif any(word in _fold(name) for word in _HEADERS):
        plain = patterns.line.match(text, start)
    else:
        plain = patterns.word.match(text, start)
    return (start if plain is None else plain.end()), "", ""


def _closing_bracket(text: str, start: int) -> int:
    """The place behind the bracket that closes the one here, or the end."""
    depth = 0
    for found in _patterns().bracket.finditer(text, start):
        if found.group() in ("(", "[", "{"):
            depth += 1
        elif found.group() in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return found.end()
    return len(text)


class _Patterns:
    """The patterns, compiled when first needed. All quantifiers that could give back are possessive."""

    def __init__(self) -> None:
        import re

        self.parts: Pattern[str] = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
        self.block: Pattern[str] = re.compile(
            r"-----BEGIN [A-Z ]{0,60}KEY-----.*?(?:-----END [A-Z ]{0,60}KEY-----|\Z)", re.DOTALL
        )
        # --name value; <name>value; name=value, "name": value, user[name]=value; ('name', 'value')
        self.named: Pattern[str] = re.compile(
            r"""(?<![\w-])--?(?P<option>\w[\w-]*+)\s++(?=[^\s-])|(?<=<)(?P<tag>[\w-]++)>|"""
            r"""(?<![\w-])(?P<word>[\w-]++)(?:"""
            r"""(?:%5D)?[]"'\\)]*+\s*+[:=]++>?\s*+|\\*+["']\s*+,\s*+(?=\\*+["']))""",
            re.IGNORECASE,
        )
        self.quoted: Pattern[str] = re.compile(
            r"""(?:[\w.]{0,40}\(|[bfru]{0,2})(?:"""
            r"""(?P<open>["'])(?:(?!(?P=open))[^\\]|\\.|(?P=open)(?P=open))*+(?:(?P=open)|\\?\Z)|"""
            r"""(?P<escaped>\\++["'])(?:(?!(?<!\\)(?P=escaped)).)*+(?:(?P=escaped)|\Z))""",
            re.DOTALL | re.IGNORECASE,
        )
        self.bracket: Pattern[str] = re.compile(
            r""""(?:[^"\\]|\\.)*+(?:"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z)|[][(){}]""", re.DOTALL
        )
        self.masked: Pattern[str] = re.compile(r"\*\*\*(?!\S)")
        self.element: Pattern[str] = re.compile(r"[^<]++")
        self.line: Pattern[str] = re.compile(r"[^\r\n]++")
        self.word: Pattern[str] = re.compile(
            r"(?:(?:basic|bearer|digest|negotiate|token)\s++)?+\S++(?: \d{2,6}+\b)*+", re.IGNORECASE
        )
        self.shapes: list[tuple[Pattern[str], str | Callable[[Match[str]], str]]] = [
            (re.compile(r"(?i)(?<![\w-])(basic|bearer)(\s++|%20|\+)[^\s\"'\\<>]++"), rf"\1\2{MASK}"),
            (re.compile(r"://([^\s/?#\"'<>]++)"), _without_user),
            (re.compile(r"://[^\s/?#@:]{0,200}+:[^\s@]{1,200}+@"), rf"://{MASK}@"),
            (re.compile(r"(?<![A-Za-z0-9])A(?:KIA|SIA|IDA|ROA|GPA)[A-Z0-9]{8,}+"), MASK),
            (re.compile(r"eyJ[\w-]{4,}+(?:\.[\w-]*+)*+"), MASK),
            (re.compile(rf"(?<![A-Za-z0-9])(?:{_PREFIXES})[\w-]{{4,}}+"), MASK),
        ]  # fmt: skip


def _without_user(found: Match[str]) -> str:
    user, at, host = found[1].rpartition("@")
    return f"://{MASK}@{host}" if at and user else found[0]


_compiled: list[_Patterns] = []


def _patterns() -> _Patterns:
    if not _compiled:
        _compiled.append(_Patterns())
    return _compiled[0]
