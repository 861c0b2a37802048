"""The names, token shapes and notations by which `masking` recognises a secret. Data only.

Add a vendor's token to `TOKENS`, a name to `WORDS` or `PHRASES`, a notation to `SYNTAX`. In the
patterns nothing that repeats stands within something that repeats, and every repetition is possessive or
bounded: 1 MiB of hostile text takes linear time.
"""

from __future__ import annotations


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Names. They are split into words at punctuation, humps and digits: `dbPassword2` is `db password`.

# A name with one of these words names a secret.
WORDS = _set("""
    password passwords passwd passphrase passphrases passcode passcodes pwd pass pw passwort kennwort senha
    secret secrets token tokens apikey apikeys authorization auth auths bearer jwt credential credentials
    creds cookie cookies session sessions sid csrf xsrf signature psk otp totp pin cvv cvc ssn iban card
    mnemonic
""")
# So does one with these words next to each other.
PHRASES = _set("""
    accesscode accesskey accesskeys accountkey aeskey apikey apikeys appkey applicationkey authcode authkey
    authorizationcode backupcode backupcodes cardnumber clientassertion clientkey codeverifier
    connectionstring consumerkey creditcard debitcard decryptionkey deploykey encryptionkey functionkey
    functionskey hmackey ingestionkey integrationkey licencekey licensekey listenkey masterkey privatekey
    recoverycode recoverycodes recoveryphrase rootkey samlassertion samlrequest samlresponse secretkey
    securitycode seedphrase serverkey servicekey sessionid sessionkey sharedkey signingkey storagekey
    subscriptionkey symmetrickey verificationcode webhookkey
""")
# So does a word that ends with this, and a name that holds this once all but letters and digits is gone.
ENDINGS = ("token", "secret", "sessionid", "sessid", "passwd", "pwd")
FRAGMENTS = (
    "password", "passphrase", "apikey", "accesstoken", "authtoken", "secretkey", "privatekey", "cardnumber",
    "creditcard", "motdepasse", "contraseña", "contrasena", "пароль", "密码", "密碼", "パスワード",
)  # fmt: skip
# The last word of names that say something *about* a secret: `token_type`, `password_changed_at`.
DETAILS = _set("""
    age alg algorithm arn at attempts backend bucket budget by changed class count counts created date days
    disabled domain enabled endpoint error errors exception expiration expire expired expires expiry field
    file filename flow format handler header in index kind label left len length limit limits manager map
    max method methods middleware min mode model name names on path per policies policy position prefix
    provider providers realm ref reference remaining required rotated rotation scheme scope scopes size
    source state status store strategy strength suffix time timeout total ttl type types updated uri url
    usage used valid validity verified version
""")
# These name a secret only if the value looks random: there are too many other keys and codes.
WEAK = _set("appid assertion code codes hmac key keys nonce salt sas seed sig ticket verifier")
# And not even then behind these.
NOT_KEYS = _set("""
    cache composite country currency dedup deduplication error exit foreign group hash host idempotency
    index language lock message natural object partition postal primary public range routing row sort status
    surrogate translation unique zip
""")
# Under these, a value with less than three digits is not masked: `card: ace of spades`.
NUMBERS = _set("card cvc cvv iban otp pin ssn totp")
# Names whose values have blanks in them: all up to the end of the line is masked.
LINES = ("authorization", "cookie", "cookies", "passphrase", "mnemonic", "seedphrase", "recoveryphrase")

# Values that are not secrets, whatever name they stand under.
STATES = _set("""
    none null nil undefined unset empty missing unknown true false yes no on off ok n/a - ... … / expired
    invalid valid required optional disabled enabled denied revoked rejected hidden redacted masked default
    failed
""")
# Words with which a sentence goes on, and names of types, where a value without quotes would stand.
PLAIN = STATES | _set("""
    a access after also an and any are as at auth authentication authorization be because been before but by
    bytes can cannot can't could credential credentials did does doesn't either expected expecting failure
    field for format from had has have header headers id if in incorrect int is isn't it its key length list
    login may might must my name neither nor not object of one only or our page password please provided
    request scheme schemes secret sent set should so some str string supplied support that the then there
    this to token tokens too type unable unexpected unsupported until use used user using value verification
    was wasn't we were when which while will with without would wrong you your
""")

# Mappings in which one entry names the other: {"Key": "DB_PASSWORD", "Value": ...}.
NAMING = _set("name key header parameterkey parametername field variable option")
VALUES = _set("value val parametervalue content")
# The private members of a JSON web key, which is a mapping with `kty`.
JWK = _set("d p q dp dq qi k")

# Tokens that say by themselves whose they are. (how they begin, what follows at least)
_ANY = r"[\w-]{8,}+"
_LONG = r"[\w+/=-]{16,}+"
_WORD = r"[A-Za-z0-9]{26,}+(?![\w.])"
_HEX = r"[0-9a-f]{32,}+(?![\w-])"
TOKENS: tuple[tuple[str, str], ...] = (
    # code hosts and registries
    (r"gh[oprsu]_|github_pat_", _ANY),
    (r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|soat|oas|agent|ffct)-", _ANY),
    (r"ATATT3|ATCTT3|ATBB|AKCp\d|CLOJARS_|rubygems_|pypi-|sgp_|CCIPAT_|bkua_", _LONG),
    (r"dckr_(?:pat|oat)_", _ANY),
    (r"npm_|cio", _WORD),
    # chat, mail, payments
    (r"xox[a-z]-|xapp-\d-", _ANY),
    (r"(?:bot)?\d{8,10}:AA", r"[\w-]{30,}+"),
    (r"SG\.", r"[\w-]{16,64}\.[\w-]{16,}+"),
    (r"xkeysib-|xsmtpsib-", _LONG),
    (r"mlsn\.", r"[\w.-]{12,}+"),
    (r"key-", _HEX),
    (r"[0-9a-f]{32}-us", r"\d{1,2}(?!\w)"),
    (r"[prs]k_(?:live|test|prod)_|whsec_", r"[\w-]{4,}+"),
    (r"shp(?:at|ca|pa|ss|ssb|tka)_", _ANY),
    (r"sq0(?:atp|csp|idp)-|EZ[AT]K|FLWSECK_|duffel_(?:test|live)_|shippo_(?:test|live)_", _LONG),
    (r"EAA[A-Z]", r"[\w-]{40,}+"),
    # models
    (r"sk-(?:proj|ant|or|svcacct|admin|lf)-", r"[\w-]{4,}+"),
    (r"[prs]k[-_]", r"[A-Za-z0-9]{16,}+"),
    (r"(?:hf|api_org|r8)_", _WORD),
    (r"gsk_|pcsk_|nvapi-", _ANY),
    (r"xai-|csk-|fw_|e2b_", r"[A-Za-z0-9]{30,}+"),
    (r"fc-", _HEX),
    (r"pplx-|tvly-|rpa_|tgp_v1_|jina_|lsv2_|apify_api_", _LONG),
    # clouds, hosting, infrastructure
    (r"A(?:KIA|SIA|IDA|ROA|GPA|NPA|NVA|BIA|CCA)", r"[A-Z0-9]{8,}+(?![a-z])"),
    (r"LTAI|AKID", r"[A-Za-z0-9]{16,}+"),
    (r"AIza", r"[\w-]{20,}+"),
    (r"AAAA[\w-]{7}:", r"[\w-]{40,}+"),
    (r"GOCSPX-|do[opr]_v1_", _ANY),
    (r"ya29\.|1//0|4/0A", r"[\w.-]{12,}+"),
    (r"hv[sbr]\.|dp\.(?:st|pt|ct|sa|scim|audit)\.|dt0[cs]\d\d\.", r"[\w.-]{12,}+"),
    (r"s\.", r"[A-Za-z0-9]{24}(?![\w.])"),
    (r"[A-Za-z0-9]{14}\.atlasv1\.", r"[\w-]{20,}+"),
    (r"v1\.0-[0-9a-f]{24}-", r"[0-9a-f]{32,}+"),
    (r"dapi|SK|pul-", _HEX),
    (r"HRKU-|pscale_(?:tkn|oauth|pw)_|sbp_|nfp_|vercel_blob_rw_|fo1_|fm[12][ar]?_", _LONG),
    (r"FlyV1 ", r"[\w+/=,-]{16,}+"),
    (r"AGE-SECRET-KEY-(?:PQ-)?1", r"[A-Za-z0-9]{10,}+"),
    # watching, planning, designing
    (r"NR(?:AK|II|JS|AL)-|sntry[su]_|gl(?:sa|c)_|phx_", _LONG),
    (r"lin_(?:api|oauth)_", _ANY),
    (r"PMAK-|figd_|ntn_|rdme_", _LONG),
    (r"(?:aio|secret|tfp)_", _WORD),
    (r"pat[A-Za-z0-9]{14}\.", r"[0-9a-f]{32,}+"),
    (r"SSWS ", _ANY),
)  # fmt: skip

# Ways of writing in which no name and sign stand before the secret, which is the group of that name.
# (what a text must hold in lower case for the pattern to apply, the pattern)
_QUOTED = r"""'[^']*+'|"[^"]*+\""""
SYNTAX: tuple[tuple[str, str], ...] = (
    # SQL: IDENTIFIED BY 'x'; SET PASSWORD FOR ann = 'x'
    (
        "identified",
        (
            r"(?i)\bidentified\s{1,9}(?:with\s{1,9}\w{1,40}\s{1,9})?(?:by|as)\s{1,9}(?:password\s{1,9})?"
            rf"""(?P<secret>{_QUOTED}|[^\s'";]++)"""
        ),
    ),
    (
        "password for",
        rf"(?i)\bpassword for\s{{1,9}}\S{{1,120}}\s{{0,9}}=\s{{0,9}}(?P<secret>{_QUOTED})",
    ),
    # netrc, pgpass
    ("login", r"(?i)\blogin\s{1,9}\S{1,120}\s{1,9}(?:password|account)\s{1,9}(?P<secret>\S++)"),
    (
        "pgpass",
        r"(?i)\bpgpass\S{0,40}\s{1,9}[\w.*-]{1,255}:[\d*]{1,5}:[^\s:]{1,99}:[^\s:]{1,99}:(?P<secret>\S++)",
    ),
    # curl -u user:password
    (
        "-u",
        (
            r"""(?i)(?<![\w-])(?:-u|--user|--proxy-user)(?:=|\s{1,9}|["'],\s{0,9}["'])["']?"""
            r"""[^\s:/"']{1,99}:(?P<secret>[^\s"']++)"""
        ),
    ),
    # Oracle: sqlplus scott/tiger@db. Elsewhere, `owner/name@version` is no secret.
    (
        "@",
        (
            r"(?i)\b(?:sqlplus|sqlldr|expdp|impdp|rman|connect|thin:|oci:|userid=)\s{0,9}(?:-\w\s{1,9})?"
            r"""[\w$#]{1,30}/(?P<secret>[^\s/@"']{1,128})@"""
        ),
    ),
    # commands with the password in an option of one letter
    ("sshpass", r"(?i)\bsshpass\b[^\n]{0,120}?\s-p\s{0,9}(?P<secret>[^\s-]\S*+)"),
    (" login", r"(?i)\b(?:docker|podman|nerdctl) login\b[^\n]{0,120}?\s-p\s{0,9}(?P<secret>[^\s-]\S*+)"),
    (
        " -p",
        (
            r"(?i)\b(?:mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump)\b[^\n]{0,120}?\s-p"
            r"(?P<secret>[^\s-]\S*+)"
        ),
    ),
    ("-cli", r"(?i)\b(?:redis|valkey)-cli\b[^\n]{0,120}?\s-a\s{1,9}(?P<secret>[^\s-]\S*+)"),
    ("ldap", r"(?i)\bldap[a-z]{2,10}\b[^\n]{0,120}?\s-w\s{1,9}(?P<secret>[^\s-]\S*+)"),
    # a URL that was split; a pair of user and password
    (
        "netloc",
        r"""(?i)\bnetloc["']?\s{0,9}[:=]\s{0,9}["']?[^\s:@/"']{0,99}:(?P<secret>[^\s@/"']{1,200})@""",
    ),
    ("('", r"""(?i)\b(?:credentials?|creds|auth|login)[ :=]{1,3}\((?P<secret>b?["'][^()\n]{1,200})\)"""),
    # URLs that are secret as a whole
    (
        "hook",
        (
            r"(?:hooks\.slack\.com/(?:services|workflows|triggers)|/api/webhooks/\d{1,30}|"
            r"webhook\.office\.com/webhookb2)/(?P<secret>[\w/@%.-]{10,}+)"
        ),
    ),
    # JSON web tokens, also within a word
    ("eyj", r"(?P<secret>eyJ[\w-]{4,}+(?:\.[\w-]*+)*+)"),
    # Redis: AUTH x
    ("auth ", r"""\bAUTH (?P<secret>(?=[^\s\d]{0,200}\d)[^\s'"]{12,}+)"""),
)

# Without one of these, in lower case, a text holds no telling name. Most messages hold none of them.
NAMES = (
    "pass", "pwd", "pw", "secret", "token", "key", "auth", "cookie", "sess", "cred", "card", "pin", "otp",
    "cvv", "cvc", "ssn", "iban", "jwt", "sid", "csrf", "xsrf", "bearer", "sig", "code", "psk", "salt",
    "nonce", "ticket", "seed", "hmac", "assertion", "verifier", "sas", "saml", "mnemonic", "connectionstring",
    "connection_string", "connection-string", "connection string", "phrase", "kennwort", "senha", "contrase",
    "парол", "密", "パス", "appid",
)  # fmt: skip
# The same for secrets that are only said.
SAID = ("pass", "token", "secret", "session", "jwt", "credential", "key")

# A text without any of these, in lower case, holds no secret but perhaps a token.
TRACES = (*NAMES, *[trace for trace, _ in SYNTAX], "-----begin", "putty-user", "basic", "://")
