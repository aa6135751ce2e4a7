"""
The forms of secrets in texts: keys by their beginnings, addresses and headers that hold one, and values by the names
that they are given to.

detect-secrets has some forms; this adds those that it lacks, and assignments without quotation marks (of shells,
YAML, INI files and command lines).
"""

import base64
import re
from collections.abc import Iterator
from functools import cache
from typing import Any


# Beginnings of the keys of services and tools; a run that looks random comes after each.
BEGINNINGS = """
hf_ api_org_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glft- glsoat- glcbt- npm_ pypi- rubygems_
gsk_ r8_ xai- pplx- nvapi- sk- sk_ rk_ whsec_ tgp_v1_ esecret_ tvly- jina_ e2b_ pcsk_ lsv2_pt_ lsv2_sk_ KGAT_
wandb_v1_ ya29. GOCSPX- 1//0 xoxa- xoxb- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp- ATATT3 ATCTT3 ATBB PMAK- rdme_
CFPAT- figd_ ntn_ secret_ lin_api_ lin_oauth_ dckr_pat_ dckr_oat_ hvs. hvb. hvr. dop_v1_ doo_v1_ dor_v1_ shpat_
shpca_ shppa_ shpss_ sntrys_ sntryu_ glsa_ glc_ dp.pt. dp.st. dp.sa. dp.ct. dp.scim. dp.audit. pscale_tkn_ pscale_pw_
pscale_oauth_ phx_ sbp_ sb_secret_ nfp_ vcp_ CCIPAT_ bkua_ fm2_ fo1_ HRKU- tfp_ pul- pnu_ pnb_ NRAK- NRII- NRSP-
dt0c01. dt0s01. xkeysib- xsmtpsib- sgp_ sha256~ CLOJARS_ ico- aio_ flb_live_ shippo_live_ duffel_live_ ops_ A3- AQVN
y0_ SG. sq0csp- sq0atp- EAAA AKCp cmVmdGtu LTAI AKID AGE-SECRET-KEY- v1.0- tk-us- sm_aat_ eyJrIjoi
"""
BEGUN = re.compile(
    rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, sorted(BEGINNINGS.split(), key=len, reverse=True)))})"
    r"([\w+/=.-]{16,})"
)

# Kind -> what a secret of it looks like; a group in a pattern is the part that has to look random.
FORMS = {
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "GitHub token": re.compile(r"\bgithub_pat_\w{20,}"),
    # A run of letters and digits, so that names of data in Slovak ("sk-en-…") are not taken for keys.
    "secret key (sk-…)": re.compile(r"\bsk-[\w-]*?[A-Za-z0-9]{20,}"),
    "Google API key": re.compile(r"\bAIza[\w-]{35}"),
    "Databricks token": re.compile(r"\bdapi[0-9a-f]{32}"),
    "Facebook token": re.compile(r"\bEAA[A-Za-z0-9]{60,}"),
    "Mailgun key": re.compile(r"\bkey-[0-9a-f]{32}\b"),
    "Airtable token": re.compile(r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    "Terraform token": re.compile(r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),
    "Azure client secret": re.compile(r"(?<![\w.~-])[\w.~-]{3}\dQ~[\w.~-]{31,34}"),
    "JSON Web Token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    "Private Key": re.compile(
        r"BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-\d|^Private-Lines: \d|BEGIN OpenVPN Static key"
        r"|(?:minisign|rsign) encrypted secret key|<D>[A-Za-z0-9+/=]{40,}</D>"
        # in base64: "-----BEGIN", "openssh-key-v1", and the head of an RSA key (PKCS #8)
        r"|LS0tLS1CRUdJTi|b3BlbnNzaC1rZXktdjE|MII[A-Za-z0-9+/]{3,5}IBADANBgkqhkiG9w0BAQ",
        re.MULTILINE,
    ),
    "password in an address": re.compile(
        r"\b[A-Za-z][\w+.-]*://[^\s/?#@:\"'<>]*:(?!\d{1,5}[/?#])[^\s@\"'<>{}]+@(?=[\w\[])"
    ),
    "token in an address": re.compile(r"\b[A-Za-z][\w+.-]*://([^\s/?#@:\"'<>]{12,})@(?=[\w\[])"),
    "signed address": re.compile(
        r"(?i)[?&;](?:sig|signature|x-(?:amz|goog)-(?:signature|security-token))=[\w%+/=-]{16,}"
    ),
    "webhook": re.compile(
        r"(?i)hooks\.slack\.com/(?:services|workflows|triggers)/\w+/\w+|discord(?:app)?\.com/api(?:/v\d+)?/webhooks/\d+/"
        r"[\w-]{20,}|webhook\.office\.com/webhookb2/[\w@-]{20,}|outlook\.office(?:365)?\.com/webhook/[\w@-]{20,}"
        r"|hooks\.zapier\.com/hooks/catch/\w+/\w+|chat\.googleapis\.com/v1/spaces/\S+[?&]key=|/robot/send\?access_token="
        r"|maker\.ifttt\.com/\S*/with/key/\w+|/open-apis/bot/v2/hook/[\w-]{16,}|/cgi-bin/webhook/send\?key=[\w-]{16,}"
        r"|api\.telegram\.org/bot\d+:[\w-]+"
    ),
    "authorization": re.compile(r"\b(?i:bearer|token|apikey|digest|negotiate)\s+([\w+/.=~-]{12,})"),
    "cookie": re.compile(r"(?i)\bcookie[\"']?\s*[:=]\s*[\"']?[\w.-]+=[^\s;\"'<>{}$]{6,}"),
    "hash of a password": re.compile(r"\$(?:apr1|2[aby]\$\d\d|5|6|argon2i?d?)\$[\w./+=,$-]{20,}"),
    "password of a command": re.compile(
        r"\blogin\s+\S+\s+password\s+\S{4,}|\bsshpass\s+-p\s*[^\s$<{]{4,}|\bdocker\s+login\b.*\s-p\s*[^\s$<{]{4,}"
        r"|\b(?:curl|wget|http)\b.*\s(?:-u|--user|-a)\s+[\"']?[^\s:\"'$<{]+:[^\s\"'$<{]{3,}"
        r"|\bwandb\s+login\b.*\b[0-9a-f]{40}\b"
    ),
}
BASIC = re.compile(r"\b(?i:basic)\s+([A-Za-z0-9+/]{8,}={0,2})")

# Names (in small letters, without what divides words) of which any value is a secret; what they may end with for a
# value that is none; and last words of names of which a value is a secret if it looks like one.
SECRET_NAMES = re.compile(
    r"pass(?:word|wd|phrase|code|key)|pwd?$|^pass$|(?:db|mail|user|root|admin|ldap|smtp|ftp|ssh|bind|sql|proxy)pass$"
    r"|sess(?:ion)?id$|secret(?!ary|ari)|credential|connectionstring|connstr|authorization|authtoken"
    r"|(?:api|access|auth|private|signing|encryption|encrypt|master|service|account|deploy|db|database|client|storage"
    r"|server|admin|license|sharedaccess|ssh|subscription|webhook|hmac|jwt)key|(?:access|auth|refresh|session|bearer)token"
)
HARMLESS_ENDS = re.compile(
    r"(?i)(?:file|files|path|dir|folder|name|names|env|var|variable|length|len|type|count|size|field|column|id|ids|url"
    r"|uri|policy|hint|required|enabled|class|index|dim|mask|min|max|limit|version|word|words)$"
)
DOUBTFUL_ENDS = """
token key auth cookie cookies creds cred jwt sas pat pass pw session sid csrf dsn psk otp bearer login
"""
SEVERAL = "keys tokens passwords secrets"
# Before these words, what the word before makes of them: the begin token, the key of a dictionary.
ROLES = """
bos eos unk sep pad cls mask start end begin stop special added image audio video next prev previous target source
first last src tgt max min num per lang language forced word char byte input output decoder encoder each new extra
tag prefix suffix middle sub query value sort dict json foreign primary public cache map attention layer state config
column field label metric boi eoi boa eoa bov eov of the a by in
"""
GENERIC = """
value values text content data header headers default raw plain string
"""

# Values that stand for a secret and are none: they have no digits.
PLACEHOLDER = re.compile(
    r"(?is)(?:<.*>|\[.*\]|\{.*\}|\$.*|%.*%|@.*|x{3,}|\*+|\.{2,}.*|-+|[^a-z]*|.*\{\w*\}|.*<[\w -]+>|.*\$\{?[a-z_]+\}?"
    r"|(?:your|my|enter|insert|put|add|change|replace|set|see|use|ask|get|read|from|in|the|an?|some|not)[-_ ].*"
    r"|change_?me|none|null|nil|true|false|yes|no|on|off|not|unset|empty|default|optional|required|redacted|removed"
    r"|hidden|secrets?|password|passwd|tokens?|keys?|string|str|int|bool|bytes|float|any|object|dict|list|os\..*"
    r"|env(?:iron)?\..*|getenv|config\..*|self\..*|args\..*|settings\..*|read|write|public|private|basic|bearer|n/a|todo"
    r"|tbd|example|placeholder|dummy|[a-z_]+(?:\.[a-z_]+)+)"
)
SCHEME = re.compile(r"(?i)(?:bearer|basic|token|digest|apikey)\s+")

NAME = (
    r"(?P<name>[\w.-]{0,60}(?:pass|pw|secret|key|token|auth|cookie|cred|conn|jwt|sas|pat|session|sid|csrf|dsn|psk|otp"
    r"|bearer|login)[\w.-]{0,60})"
)
VALUE = (
    r"(?:[fFrRbBuU]{0,2}(?P<quote>[\"'`])(?P<quoted>(?:(?!(?P=quote)).){3,500})(?P=quote)"
    r"|(?P<bare>[^\s\"'`,;&(){}\[\]<>|\\]{3,300}))"
)
# What gives a value to a name: a sign, an option of a command, a line of a Dockerfile.
BY_SIGN = re.compile(
    rf"(?i)(?<![\w.-])(?:--?)?{NAME}[\"'`\])*]{{0,4}}(?P<divider>[ \t]*(?::=|=>|={{1,3}}|:|>)\**[ \t]*){VALUE}"
)
BY_SPACE = (
    re.compile(rf"(?i)(?<![\w-])--?(?=[a-z]){NAME}(?P<divider>[ \t]+)(?!-){VALUE}"),
    re.compile(
        r"(?im)(?:^\s*(?:env|arg|setx?|setenv)|\bconfigure[ \t]+set|\bset[ \t]+-\w+)[ \t]+"
        rf"{NAME}(?P<divider>[ \t]+){VALUE}"
    ),
    re.compile(rf"(?i)\b(?:key|name)[ \t]*=[ \t]*[\"']{NAME}[\"'](?P<divider>[ \t]+)value[ \t]*=[ \t]*{VALUE}"),
)


def is_random(text: str) -> bool:
    """Whether a text has a run of letters and digits that change places, as keys have and words have not."""
    for run in re.findall(r"[A-Za-z0-9]{6,}", text):
        changes = len(re.findall(r"(?<=[A-Za-z])\d|(?<=\d)[A-Za-z]", run))
        if changes >= 2 or (changes and len(run) >= 16):
            return True
    return False


def is_plain(text: str) -> bool:
    """Whether a text is made of words, which have letters alone and are not long."""
    return re.fullmatch(r"[^\W\d_]{1,19}(?:[ _./-]+[^\W\d_]{1,19})*", text) is not None


def is_placeholder(text: str, name: str = "") -> bool:
    """Whether a value stands for a secret, such as "<your key>", a type, a variable, or the name itself."""
    text = SCHEME.sub("", text.strip().rstrip(".,;:!")).strip()
    if not text or _joined(text) == _joined(name):
        return True
    return not is_random(text) and PLACEHOLDER.fullmatch(text) is not None


def _joined(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


@cache
def _kind_of(name: str) -> str:
    """Whether values of a name are "secret", "doubtful", or "" for neither."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    while words and words[-1] in GENERIC.split():
        words.pop()
    if not words or HARMLESS_ENDS.fullmatch(words[-1]):
        return ""
    if words[-1] in (*DOUBTFUL_ENDS.split(), *SEVERAL.split()):
        if len(words) > 1 and words[-2] in ROLES.split():
            return ""
        return "secret" if SECRET_NAMES.search(_joined(name)) and words[-1] not in SEVERAL.split() else "doubtful"
    return "secret" if SECRET_NAMES.search(_joined(name)) else ""


def is_secret_value(name: str, value: str) -> bool:
    """
    Whether the value of a field is a secret by the field's name: a password in any case, a token or a key if it is not
    a word. Names of parts, such as "headers.Authorization" or "credentials.0", count by their last one.
    """
    parts = [part for part in name.split(".") if not part.isdigit()]
    while len(parts) > 1 and parts[-1].lower() in GENERIC.split():
        parts.pop()
    last = parts[-1] if parts else ""
    kind, is_number = _kind_of(last), re.fullmatch(r"[\d.eE+-]*", value) is not None
    if not kind or (is_placeholder(value, last) and not (kind == "secret" and is_number and len(value) >= 4)):
        return False
    if kind == "secret":
        return len(value) >= 3
    if last.lower().endswith(tuple(SEVERAL.split())):  # such as the tokens of a text
        return is_random(value)
    return len(value) >= 8 and not is_number and not is_plain(value) and not re.fullmatch(r"\W.*\W", value)


def _is_assigned(found: re.Match[str], is_code: bool) -> bool:
    """Whether a match of an assignment gives a value to a name of a secret."""
    name, value = found["name"].strip(".-_").split(".")[-1], found["quoted"] or found["bare"]
    kind = _kind_of(name)
    if not kind or len(value) < 3 or is_placeholder(value, name):
        return False
    if found["quoted"]:
        return is_secret_value(name, value)
    if is_random(value):
        return found.string[found.end() : found.end() + 1] not in ("(", "[")  # a call or an index
    # Another bare value could be a word of a sentence, or a variable, but not where it is all that a line gives.
    may_be_word = is_code or not (_is_tight(found["divider"]) or _is_whole_line(found))
    return not may_be_word and is_secret_value(name, value)


def _is_tight(divider: str) -> bool:
    return divider.isspace() or (divider == divider.strip() and divider[-1] in "=>")


def _is_whole_line(found: re.Match[str]) -> bool:
    """Whether a match is all of its line but for "export", bullets and punctuation."""
    before = found.string[: found.start()].rpartition("\n")[2]
    behind = found.string[found.end() :].partition("\n")[0]
    return re.fullmatch(r"\W*(?:export\s+|set\s+)?", before) is not None and not behind.strip(" \t\r;,.")


def assigned_secrets(text: str, is_code: bool = False) -> Iterator[str]:
    """Values that a text gives to names of secrets. In code, bare values may be names of variables."""
    for pattern in (BY_SIGN,) if is_code else (BY_SIGN, *BY_SPACE):
        for found in pattern.finditer(text):
            if _is_assigned(found, is_code):
                yield found["quoted"] or found["bare"]


def secrets_by_form(text: str) -> Iterator[tuple[str, str]]:
    """Each kind of secret in a text with the secret itself, by its form."""
    for kind, pattern in FORMS.items():
        for found in pattern.finditer(text):
            if not pattern.groups or is_random(found[1]):
                yield kind, found[pattern.groups]
    for found in BEGUN.finditer(text):
        if is_random(found[1]):
            yield "key of a service", found[0]
    for found in BASIC.finditer(text):
        if re.fullmatch(rb"[\x20-\x7e]*:[\x20-\x7e]+", _decoded(found[1])):
            yield "authorization", found[1]
    for kind, detector in _detectors():
        # The detectors check what they find, but some give no more than its beginning.
        if any(True for _ in detector.analyze_string(text)):
            for pattern in detector.denylist:
                for found in pattern.finditer(text):
                    yield kind, found[0]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
    except ValueError:
        return b""


# Of detect-secrets: IP addresses are not secrets, and neither are random-looking strings, such as a file's SHA-256;
# and a word in capitals, such as APFELKUCHEN, looks like a key of Artifactory.
LEFT_OUT = {"IPPublicDetector", "ArtifactoryDetector"}


@cache
def _detectors() -> list[tuple[str, Any]]:
    """The detectors of detect-secrets by the kind of secret, without online verification."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    classes: Any = get_mapping_from_secret_type_to_class().items()
    return [
        (kind, detector())
        for kind, detector in classes
        if issubclass(detector, RegexBasedDetector) and detector.__name__ not in LEFT_OUT
    ]
