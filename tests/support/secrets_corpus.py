"""Secrets in realistic places, and harmless texts and payloads that look a little like them.

Written from what programs print and log, before the table in `redouble` was looked at, so that it measures
the table. `§` stands for the secret: each is made up here from a seed, so no text in this file is one, and
no scanner takes it for one.
"""

from __future__ import annotations

import base64
import random
import string
from typing import Any, NamedTuple

from support.secret_texts import TEXT_TEMPLATES

ALNUM = string.ascii_letters + string.digits


class Case(NamedTuple):
    """A text or a payload that holds `secret`."""

    holder: Any
    secret: str


def _some(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


def _password(rng: random.Random) -> str:
    """A password that a person would choose: letters, digits, a sign or two."""
    words = ["Winter", "dragon", "Kestrel", "blue", "Tango", "marble", "Falcon", "copper", "Juniper", "otter"]
    return f"{rng.choice(words)}{rng.choice('!#%*+_-.')}{rng.choice(words)}{rng.randrange(10, 9999)}"


def make_secret(template: str, kind: str) -> str:
    """Make the secret of a case from its template, always the same one.

    `a40` is 40 letters and digits, `h` hexadecimal, `b` base64, `s` base64 for URLs, `u` capitals and digits,
    `l` small letters and digits, `d` digits; `w` is a password, `jwt`, `basic`, `pem` are these;
    `=text` is the text itself.
    """
    rng = random.Random(template + kind)
    if kind.startswith("="):
        return kind[1:]
    if kind == "w":
        return _password(rng)
    if kind == "jwt":
        return ".".join(
            (_some(rng, ALNUM, 33), "eyJ" + _some(rng, ALNUM + "-_", 90), _some(rng, ALNUM + "-_", 43))
        )
    if kind == "basic":
        return base64.b64encode(
            f"svc-{_some(rng, string.ascii_lowercase, 5)}:{_password(rng)}".encode()
        ).decode()
    if kind == "pem":
        return "\n".join(_some(rng, ALNUM + "+/", 64) for _ in range(5))
    alphabet = {
        "a": ALNUM,
        "h": "0123456789abcdef",
        "b": ALNUM + "+/",
        "s": ALNUM + "-_",
        "u": string.ascii_uppercase + string.digits,
        "l": string.ascii_lowercase + string.digits,
        "d": string.digits,
    }[kind[0]]
    body = _some(rng, alphabet, int(kind[1:]) - 1)
    return rng.choice(ALNUM if kind[0] in "bs" else alphabet) + body


# Payloads of calls: arguments that a dead letter would hold.
PAYLOAD_TEMPLATES: list[tuple[Any, str]] = [
    ({"password": "§"}, "w"),
    ({"user": {"name": "ann", "passwd": "§"}}, "w"),
    ({"Password": "§"}, "w"),
    ({"PASSWORD": "§"}, "w"),
    ({"newPassword": "§", "userId": 3}, "w"),
    ({"password_confirmation": "§"}, "w"),
    ({"db_password": "§"}, "w"),
    ({"api_key": "§"}, "a32"),
    ({"apiKey": "§"}, "a32"),
    ({"api-key": "§"}, "a32"),
    ({"x-api-key": "§"}, "a32"),
    ({"token": "§"}, "a40"),
    ({"accessToken": "§"}, "a40"),
    ({"access_token": "§", "expires_in": 3600}, "a40"),
    ({"refresh_token": "§"}, "a40"),
    ({"client_secret": "§", "client_id": "web"}, "a40"),
    ({"secret": "§"}, "a32"),
    ({"secrets": {"db": "§"}}, "w"),
    ({"credentials": {"user": "ann", "value": "§"}}, "w"),
    ({"credentials": ["ann", "§"]}, "w"),
    ({"auth": ["ann", "§"]}, "w"),
    ({"auth": ("ann", "§")}, "w"),
    ({"authorization": "Bearer §"}, "a40"),
    ({"headers": {"Authorization": "Basic §"}}, "basic"),
    ({"headers": {"Authorization": "§"}}, "a40"),
    ({"headers": [["Authorization", "Bearer §"]]}, "a40"),
    ({"headers": [("X-Api-Key", "§")]}, "a32"),
    ({"headers": [(b"authorization", b"Bearer \xc2\xa7")]}, "a40"),
    ({"headers": [[b"x-api-key", b"\xc2\xa7"], [b"host", b"a.example"]]}, "a32"),
    ({"type": "http", "headers": [(b"cookie", b"sessionid=\xc2\xa7")]}, "l32"),
    ({b"password": b"\xc2\xa7"}, "w"),
    ({"raw_headers": ["Host", "a.example", "Authorization", "Bearer §"]}, "a40"),
    ({"rawHeaders": ["X-Api-Key", "§", "Accept", "*/*"]}, "a32"),
    ({"cookies": {"sessionid": "§"}}, "l32"),
    ({"cookie": "a=b; PHPSESSID=§"}, "l26"),
    ({"Set-Cookie": "sid=§; HttpOnly"}, "a40"),
    ({"session_id": "§"}, "a40"),
    ({"environment": [{"Key": "DB_PASSWORD", "Value": "§"}]}, "w"),
    ({"env": [{"name": "API_TOKEN", "value": "§"}]}, "a32"),
    ({"Parameters": [{"ParameterKey": "MasterUserPassword", "ParameterValue": "§"}]}, "w"),
    ({"Tags": [{"Key": "secret", "Value": "§"}]}, "a32"),
    ({"environment": {"AWS_SECRET_ACCESS_KEY": "§"}}, "b40"),
    ({"environment": ["DB_PASSWORD=§", "LANG=C"]}, "w"),
    ({"argv": ["tool", "--password", "§", "deploy"]}, "w"),
    (["tool", "--password=§"], "w"),
    (["mysql", "--user", "ann", "--password", "§"], "w"),
    (["curl", "-u", "ann:§", "https://api.example.com"], "w"),
    (["curl", "-H", "Authorization: Bearer §"], "a40"),
    (["docker", "login", "--password", "§"], "w"),
    (["tool", "--api-key", "§"], "a32"),
    (["tool", "--client-secret", "§"], "a40"),
    (["tool", "-p", "x", "--token", "§"], "a40"),
    ({"args": [["redis-cli", "--pass", "§"]]}, "a24"),
    ({"url": "https://ann:§@api.example.com/x"}, "w"),
    ({"url": "https://api.example.com/x?key=§"}, "s39"),
    ({"url": "https://api.example.com/x?sig=§"}, "b43"),
    ({"dsn": "postgresql://app:§@db/orders"}, "w"),
    ({"params": {"key": "§", "q": "Berlin"}}, "s39"),
    ({"params": [("api_key", "§"), ("q", "x")]}, "a32"),
    ({"query": {"sig": "§", "se": "2024-05-01"}}, "b43"),
    ({"query_string": b"access_token=\xc2\xa7&a=1"}, "a40"),
    ({"scheme": "https", "username": "ann", "password": "§", "hostname": "x"}, "w"),
    (("https", "ann:§@api.example.com", "/x", "", ""), "w"),
    ({"scheme": "https", "netloc": "ann:§@api.example.com", "path": "/x"}, "w"),
    ({"connection_string": "AccountName=acme;AccountKey=§;EndpointSuffix=x"}, "b86"),
    ({"AccountKey": "§"}, "b86"),
    ({"SharedAccessKey": "§"}, "b43"),
    ({"account": {"name": "acme", "key": "§"}}, "b86"),
    ({"subscription_key": "§"}, "h32"),
    ({"Ocp-Apim-Subscription-Key": "§"}, "h32"),
    ({"private_key": "-----BEGIN PRIVATE KEY-----\n§\n-----END PRIVATE KEY-----"}, "pem"),
    ({"key_pem": "-----BEGIN RSA PRIVATE KEY-----\n§\n-----END RSA PRIVATE KEY-----"}, "pem"),
    ({"type": "service_account", "private_key_id": "1", "private_key": "§"}, "b64"),
    ({"kty": "RSA", "n": "x", "e": "AQAB", "d": "§"}, "s86"),
    ({"kty": "oct", "k": "§"}, "s43"),
    ({"psk": "§"}, "=sunflower-42-lane"),
    ({"pin": "§"}, "d6"),
    ({"otp": "§"}, "d6"),
    ({"cvv": "§"}, "d3"),
    ({"card": {"number": "§", "exp_month": 4}}, "=4111111111111111"),
    ({"ssn": "§"}, "=078-05-1120"),
    ({"grant_type": "authorization_code", "code": "§"}, "a40"),
    ({"SAMLResponse": "§"}, "b200"),
    ({"client_assertion": "§"}, "a120"),
    ({"code_verifier": "§"}, "s64"),
    ({"id_token": "eyJhbGciOi§"}, "jwt"),
    ({"note": "use eyJhbGciOi§ for now"}, "jwt"),
    ({"text": "my key is sk-ant-api03-§"}, "s93"),
    (["sk-proj-§"], "s80"),
    ({"body": '{"password": "§"}'}, "w"),
    ({"body": b'{"client_secret": "\xc2\xa7"}'}, "a40"),
    ({"body": "username=ann&password=§"}, "w"),
    ({"data": b"grant_type=refresh_token&refresh_token=\xc2\xa7"}, "a60"),
    ({"xml": "<Password>§</Password>"}, "w"),
    ({"sql": "CREATE USER app PASSWORD '§'"}, "w"),
    ({"message": "password is: §"}, "w"),
    ({"netrc": "machine x login ann password §"}, "w"),
    ({"config": "user: app\npassword: §\n"}, "w"),
    ({"aws_session_token": "§"}, "b120"),
    ({"Credentials": {"AccessKeyId": "x", "SecretAccessKey": "§", "SessionToken": "y"}}, "b40"),
    ({"bot_token": "§"}, "=7482910473:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1"),
    ({"webhook": "https://hooks.slack.com/services/T§"}, "=0A1B2C3D/B0E4F5G6H/q7W8e9R0t1Y2u3I4o5P6a7S8"),
    ({"smtp": {"host": "x", "user": "ann", "pass": "§"}}, "w"),
    ({"pwd": "§"}, "w"),
    ({"passphrase": "§"}, "=correct horse battery staple"),
    ({"user_pass": "§"}, "w"),
    ({"_authToken": "§"}, "a36"),
    ({"auths": {"index.example.io": {"auth": "§"}}}, "basic"),
    ({"encryptionKey": "§"}, "b44"),
    ({"signing_secret": "§"}, "h32"),
    ({"fields": [{"key": "password", "value": "§"}]}, "w"),
    ({"fields": {"password": {"value": "§", "required": True}}}, "w"),
    ({"login": ["ann", {"secret": ["§"]}]}, "w"),
    ({"x": {"y": [{"z": {"token": "§"}}]}}, "a40"),
    ({"tokens": ["§", "other"]}, "a40"),
    ({"api_keys": {"eu": "§"}}, "a32"),
    ({"bearer": "§"}, "a40"),
    ({"jwt": "§"}, "a40"),
    ({"access_key": "§"}, "a40"),
    ({"hmac_key": "§"}, "h64"),
    ({"recovery_codes": ["§", "x"]}, "=k4f2-9xq7-m3tz"),
    ({"mnemonic": "§"}, "=legal winner thank year wave sausage worth useful legal winner thank yellow"),
]


def _fill(value: Any, secret: str) -> Any:
    match value:
        case str():
            return value.replace("§", secret)
        case bytes():
            return value.replace("§".encode(), secret.encode())
        case dict():
            return {_fill(name, secret): _fill(item, secret) for name, item in value.items()}
        case list() | tuple():
            return type(value)(_fill(item, secret) for item in value)
        case _:
            return value


def _cases(templates: list[tuple[Any, str]]) -> list[Case]:
    found = []
    for template, kind in templates:
        secret = make_secret(repr(template), kind)
        found.append(Case(_fill(template, secret), secret))
    return found


SECRET_TEXTS = _cases(TEXT_TEMPLATES)
SECRET_PAYLOADS = _cases(PAYLOAD_TEMPLATES)


def leaks(text: str, secret: str) -> bool:
    """Return whether `text` holds the secret, or half of it, or twelve characters of it in a row."""
    piece = max(min(len(secret), 6), min(len(secret) // 2, 12))
    return any(secret[start : start + piece] in text for start in range(len(secret) - piece + 1))
