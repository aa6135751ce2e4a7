"""
The forms of secrets in texts: keys by their beginnings, addresses, headers and commands that hold one, and values by
the names that they are given to, in code, shells, YAML, INI files, tables and markup.

Each pattern takes time that grows with the text's length alone: what it may repeat is bounded.
"""

import base64
import html
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from urllib.parse import unquote

from ..common.white_space import INVISIBLE


# What has no width: a key with one of these between two letters looks whole to a reader, who copies it whole.
_NO_WIDTH = re.compile(f"[{INVISIBLE}\u034f\u115f\u1160\u200c\u200d\u3164\ufe00-\ufe0f\U000e0000-\U000e0fff]+")
_ESCAPED = re.compile(r"\\(?:u00([0-9a-fA-F]{2})|x([0-9a-fA-F]{2})|([!-/:-@\[-`{-~]))")
_MAY_BE_WRITTEN_OTHERWISE = re.compile(r"[&%\\]|[^\x00-\x7f]")


def as_read(text: str) -> str:
    """A text without the ways to write a character as several or as another one."""
    # Entities (`&quot;`), percent signs (`%2F`), backslashes (`\/`, `\x3d`, `\_`), full-width letters, no width.
    if not _MAY_BE_WRITTEN_OTHERWISE.search(text):
        return text
    text = unquote(unquote(html.unescape(text.replace("\\\n", ""))))
    text = _ESCAPED.sub(lambda found: found[3] or chr(int(found[1] or found[2], 16)), text)
    return unicodedata.normalize("NFKC", _NO_WIDTH.sub("", text))


# Beginnings of the keys of services and tools; a run that looks random comes after each.
BEGINNINGS = """
hf_ api_org_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glft- glsoat- glcbt- glimt- glagent-
GR1348941 npm_ pypi- rubygems_ gsk_ r8_ xai- pplx- nvapi- sk- sk_ rk_ whsec_ tgp_v1_ esecret_ tvly- jina_ e2b_ pcsk_
lsv2_pt_ lsv2_sk_ KGAT_ wandb_v1_ csk- fw_ rpa_ ABSK ya29. GOCSPX- 1//0 xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp-
xoxr- xoxs- xapp- ATATT3 ATCTT3 ATBB PMAK- rdme_ CFPAT- figd_ ntn_ secret_ lin_api_ lin_oauth_ dckr_pat_ dckr_oat_ hvs.
hvb. hvr. dop_v1_ doo_v1_ dor_v1_ shpat_ shpca_ shppa_ shpss_ sntrys_ sntryu_ glsa_ glc_ dp.pt. dp.st. dp.sa. dp.ct.
dp.scim. dp.audit. pscale_tkn_ pscale_pw_ pscale_oauth_ phx_ sbp_ sb_secret_ nfp_ vcp_ CCIPAT_ bkua_ fm1_ fm2_ fo1_
HRKU- tfp_ pul- pnu_ pnb_ NRAK- NRII- NRSP- dt0c01. dt0s01. xkeysib- xsmtpsib- sgp_ sha256~ CLOJARS_ ico- aio_
flb_live_ shippo_live_ duffel_live_ ops_ A3- AQVN y0_ SG. sq0csp- sq0atp- EAAA EZAK EZTK AKCp cmVmdGtu LTAI AKID
AGE-SECRET-KEY- v1.0- tk-us- sm_aat_ eyJrIjoi eyJhcGlf tskey- pat-na1- pat-eu1- access-production- access-sandbox-
secret-live- sl.u. sk.eyJ APKA nfc_ ory_at_ ory_pat_ tk_live_ live_sk_ test_sk_ pplx_ hf_jwt_ zpka_ key_live_ ddp_
ddapp_
"""
BEGUN = re.compile(
    rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, sorted(BEGINNINGS.split(), key=len, reverse=True)))})"
    r"([\w+/=.-]{16,})"
)

# Kind -> what a secret of it looks like; a group in a pattern is the part that has to look random.
FORMS = {
    "AWS key": re.compile(r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}"),
    "Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "GitHub token": re.compile(r"\bgithub_pat_\w{20,}|gh[pousr]_\w{36}"),
    # A run of letters and digits, so that names of data in Slovak ("sk-en-…") are not taken for keys.
    "secret key (sk-…)": re.compile(r"\bsk-[\w-]{0,80}?[A-Za-z0-9]{20,}"),
    "Google API key": re.compile(r"\bAIza[\w-]{35}"),
    "Databricks token": re.compile(r"\bdapi[0-9a-f]{32}"),
    "Facebook token": re.compile(r"\bEAA[A-Za-z0-9]{60,}"),
    "Mailgun key": re.compile(r"\bkey-[0-9a-f]{32}\b"),
    "Mailchimp key": re.compile(r"[0-9a-z]{32}-us\d{1,2}\b"),
    "Twilio key": re.compile(r"\b(?:AC|SK)[0-9a-f]{32}\b"),
    "Telegram token": re.compile(r"\b\d{8,10}:([\w-]{35})"),
    "Discord token": re.compile(r"\b([MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27})"),
    "Slack token": re.compile(r"xox[a-z]-(?:\d+-){1,8}[a-z0-9]+"),
    "Airtable token": re.compile(r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    "Terraform token": re.compile(r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),
    "Vault token": re.compile(r"(?<![\w.])s\.([A-Za-z0-9]{24})(?![\w.])"),
    "Azure client secret": re.compile(r"(?<![\w.~-])[\w.~-]{3}\dQ~[\w.~-]{31,34}"),
    "JSON Web Token": re.compile(r"(?<![\w-])eyJ[\w-]{8,}+={0,2}\.(?:eyJ)?[\w-]{8,}"),
    "one-time password": re.compile(r"otpauth(?:-migration)?://"),
    "Private Key": re.compile(
        r"BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|PuTTY-User-Key-File-\d|^Private-Lines: \d|BEGIN OpenVPN Static key"
        r"|(?:minisign|rsign) encrypted secret key|<D>[A-Za-z0-9+/=]{40,2000}</D>"
        # in base64: "-----BEGIN", "openssh-key-v1", and the head of an RSA key (PKCS #8)
        r"|LS0tLS1CRUdJTi|b3BlbnNzaC1rZXktdjE|MII[A-Za-z0-9+/]{3,5}IBADANBgkqhkiG9w0BAQ",
        re.MULTILINE,
    ),
    "password in an address": re.compile(
        r"\b[A-Za-z][\w+.-]{0,30}://[^\s/?#@:\"'<>]{0,100}:(?!\d{1,5}[/?#])[^\s@\"'<>{}]{1,300}@(?=[\w\[])"
        r"|\bjdbc:[\w:]{2,40}:[\w.-]{1,60}/[^\s@/\"'<>{}]{1,100}@"
    ),
    "token in an address": re.compile(r"\b[A-Za-z][\w+.-]{0,30}://([^\s/?#@:\"'<>]{12,300})@(?=[\w\[])"),
    "signed address": re.compile(
        r"(?i)[?&;](?:sig|signature|x-(?:amz|goog)-(?:signature|security-token))=[\w%+/=-]{16,}"
        r"|[?&]code=[\w%/-]{40,120}="
    ),
    "webhook": re.compile(
        r"(?i)hooks\.slack\.com/(?:services|workflows|triggers)/\w{1,80}/\w"
        r"|discord(?:app)?\.com/api(?:/v\d{1,3})?/webhooks/\d{1,30}/[\w-]{20,}"
        r"|webhook\.office\.com/webhookb2/[\w@-]{20,}|outlook\.office(?:365)?\.com/webhook/[\w@-]{20,}"
        r"|hooks\.zapier\.com/hooks/catch/\w{1,80}/\w|chat\.googleapis\.com/v1/spaces/[^\s?&]{1,200}[?&]key="
        r"|/robot/send\?access_token=|maker\.ifttt\.com/[^\s]{0,200}/with/key/\w|/open-apis/bot/v2/hook/[\w-]{16,}"
        r"|/cgi-bin/webhook/send\?key=[\w-]{16,}|api\.telegram\.org/bot\d{1,20}:[\w-]"
    ),
    "authorization": re.compile(r"\b(?i:bearer|token|apikey|digest|negotiate)\s{1,20}([\w+/.=~-]{12,})"),
    "cookie": re.compile(r"(?i)\bcookie[\"']?\s{0,9}[:=]\s{0,9}[\"']?[\w.-]{1,100}=[^\s;\"'<>{}$]{6,}"),
    "hash of a password": re.compile(
        r"\$(?:apr1|1|y|2[abxy]\$\d\d|5|6|7|argon2i?d?)\$[\w./+=,$-]{20,}|\{S?(?:SHA\d*|MD5)\}[\w+/]{20,}"
        r"|\bpbkdf2_sha\d{1,3}\$\d{1,9}\$\w"
    ),
    "password file": re.compile(
        r"(?m)(?:^|(?<=\"))(?=[\w.*-]{0,99}[A-Za-z*])[\w.*-]{1,99}:(?:\d{3,5}|\*):[\w*-]{1,99}:[\w.*-]{1,99}:"
        r"[^\s:\"]{3,100}(?=[\s\"]|\Z)"
        r"|\blogin\s{1,20}\S{1,100}\s{1,20}password\s{1,20}\S{4,}"
    ),
}
BASIC = re.compile(r"\b(?i:basic)\s{1,20}([A-Za-z0-9+/]{8,}={0,2})")
# Options that give a password, and the commands of which they are: the nearest before them on the line.
COMMANDS = {
    re.compile(r"\s-p[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): r"mysql\w*|mariadb[\w-]*|7z[ar]?|u?n?rar",
    re.compile(r"\s-p[\s=]{0,3}[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): (
        r"sshpass|mongo\w*|twine|(?:docker|podman|buildah|skopeo|helm|az|oc)\b.{0,40}\blogin"
    ),
    re.compile(r"\s-P[\s=]{0,3}[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): r"sqlcmd|bcp|u?n?zip",
    re.compile(r"\s-a[\s=]{0,3}[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): r"redis-cli",
    re.compile(r"\s-w[\s=]{0,3}[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): r"ldap\w+",
    re.compile(r"\s-pw[\s=]{1,3}[\"']?([^\s\"'$<{(=-][^\s\"'$<{]{3,})"): r"plink|pscp|psftp|putty",
    re.compile(r"\s(?:-u|--user|-a|--auth)[\s=]{0,3}[\"']?[^\s:\"'$<{-][^\s:\"'$<{]{0,99}:([^\s\"'$<{]{3,})"): (
        r"curl|wget|https?|xh|aria2c"
    ),
    re.compile(r"\s-u[\s=]{0,3}[\"']?[^\s,:\"'$<{-]{1,99},([^\s\"'$<{]{3,})"): r"lftp",
    re.compile(r"\s-U[\s=]{0,3}[\"']?[^\s%\"'$<{]{1,99}%([^\s\"'$<{]{3,})"): r"smb\w+|rpcclient|net",
    re.compile(r"\bpass:([^\s\"'$<{]{4,})"): r"openssl",
    re.compile(r"\b([0-9a-f]{40})\b"): r"wandb\s{1,9}login",
}
LONGEST_COMMAND = 300
LONG_VALUE = 40

# Names (in small letters, without what divides words) of which any value is a secret; what they may end with for a
# value that is none; and last words of names of which a value is a secret if it looks like one.
SECRET_NAMES = re.compile(
    r"pass(?:wor[dt]|wd|phrase|code|key)|pwd?$|^pass$|kennwort|contraseña|senha$|密码|密碼|パスワード|비밀번호|пароль|motdepasse"
    r"|(?:db|mail|user|root|admin|become|ldap|smtp|ftp|ssh|bind|sql|proxy|sudo|key|store|trust)pass$"
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
    r"|bearer|login|kennwort|contraseña|senha|密码|密碼|パスワード|비밀번호|пароль)[\w.-]{0,60})"
)
VALUE = (
    r"(?:[fFrRbBuU]{0,2}(?P<quote>[\"'`])(?P<quoted>(?:(?!(?P=quote)).){3,500})(?P=quote)"
    r"|(?P<bare>[^\s\"'`,;&(){}\[\]<>|\\]{3,300}))"
)
GAP = r"[ \t]{0,20}"
NAMED = re.compile(rf"(?i)(?<![\w.-]){NAME}")
# What gives a value to a name before it: a sign, or the bracket of a call; the next lines of YAML; the element of XML
# or HTML that it names, or the next one. The value stands alone there but behind a sign.
BY_SIGN = re.compile(
    rf"[\"'`\])*]{{0,4}}(?P<divider>{GAP}(?::=|=>|={{1,3}}|<-|:|>)\**{GAP}(?:!!?\w{{1,20}}{GAP}|&\w{{1,20}}{GAP})?"
    rf"|\((?=[\"']))(?:[\"']{{2}}(?=[\"']))?{VALUE}"
)
BEHIND = (
    BY_SIGN,
    re.compile(
        rf"[\"'`]?(?P<divider>{GAP}:{GAP}(?:[|>][+\d-]{{0,2}})?{GAP}(?:\r?\n{GAP}){{1,4}}(?<=[ \t])(?:-[ \t]{{1,9}})?)"
        rf"{VALUE}(?={GAP}(?:\r?\n|\Z))"
    ),
    re.compile(rf"[\"']?[^<>\n]{{0,40}}(?P<divider>>\s{{0,20}}){VALUE}(?=\s{{0,20}}<)"),
    re.compile(
        r"[^<>\n]{0,20}(?P<divider></(?:t[dh]|dt|key|name)>\s{0,20}<(?:t[dh]|dd|string|value|data)\b[^<>]{0,99}>\s{0,20})"
        rf"{VALUE}(?=\s{{0,20}}<)"
    ),
)
# The name and the value: of an option of a command, of a line of a Dockerfile, of attributes of XML, of two lines of
# YAML, and of two cells of a table.
TOGETHER = (
    re.compile(rf"(?i)(?<![\w-])--?(?=[a-z]){NAME}(?P<divider>{GAP}[ \t])(?!-){VALUE}"),
    re.compile(
        r"(?im)(?:^[ \t]{0,20}(?:env|arg|setx?|setenv)|\bconfigure[ \t]{1,9}set|\bset[ \t]{1,9}-\w{1,9})[ \t]{1,9}"
        rf"{NAME}(?P<divider>{GAP}[ \t]){VALUE}"
    ),
    re.compile(
        rf"(?i)\b(?:key|name)[ \t]{{0,9}}=[ \t]{{0,9}}[\"']{NAME}[\"'](?P<divider>[^<>]{{0,99}}[ \t])"
        rf"value{GAP}={GAP}{VALUE}"
    ),
    re.compile(rf"(?i)\bname:{GAP}[\"']?{NAME}[\"']?{GAP}(?P<divider>\r?\n[ \t-]{{0,40}})value:{GAP}{VALUE}"),
    re.compile(
        rf"(?i)\|{GAP}[`*_]{{0,3}}{NAME}[`*_]{{0,3}}(?P<divider>{GAP}\|{GAP})[*_]{{0,3}}{VALUE}"
        r"(?=[*_ \t]{0,20}(?:\||\r?\n|\Z))"
    ),
)
# What divides the cells of a table: bars of Markdown, tabs, and commas or semicolons of CSV.
_RULE = re.compile(r":?-+:?")
_HEADS = dict.fromkeys("|\t", re.compile(r"[\w .-]{1,40}")) | dict.fromkeys(",;", re.compile(r"[\w.-]{1,40}"))


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
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+", name)]
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
    """Whether the value of a field is a secret by its name: a password; a token or a key if it is not a word."""
    # Names of parts, such as "headers.Authorization" or "credentials.0", count by their last one.
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


def _is_assigned(name: str, found: re.Match[str], start: int, is_alone: bool, is_code: bool) -> bool:
    """Whether a match gives a value, which may be alone in its place, to a name of a secret from `start` on."""
    name, value = name.strip(".-_").split(".")[-1], found["quoted"] or found["bare"]
    kind, divider = _kind_of(name), found["divider"]
    if not kind or len(value) < 3 or is_placeholder(value, name) or (divider == "(" and kind != "secret"):
        return False
    if found["quoted"] and not (is_code and found["quote"] == "`"):  # which names a variable in a comment
        return is_secret_value(name, value)
    if is_random(value):
        return found.string[found.end() : found.end() + 1] not in ("(", "[")  # a call or an index
    if value.endswith(":"):  # a name of its own, as in nested YAML
        return False
    # Another bare value could be a word of a sentence, or a variable, but not where it is all that a line gives.
    is_tight = divider.isspace() or (divider == divider.strip() and divider[-1] in "=>")
    may_be_word = is_code or not (is_alone or is_tight or _is_whole_line(found.string, start, found.end()))
    return not may_be_word and is_secret_value(name, value)


def _is_whole_line(text: str, start: int, end: int) -> bool:
    """Whether a part of a text is all of its line but for "export", bullets and punctuation."""
    before = text[max(start - 100, 0) : start].rpartition("\n")[2]
    behind = text[end : end + 100].partition("\n")[0]
    return re.fullmatch(r"\W*(?:(?:export|set)\s+)?", before) is not None and not behind.strip(" \t\r;,.")


def assigned_secrets(text: str, is_code: bool = False) -> Iterator[tuple[int, str]]:
    """Values that a text gives to names of secrets, with their places. In code, bare values may be variables."""
    end = 0  # of the last long value, in which there may be many names
    for named in NAMED.finditer(text):
        for pattern in BEHIND[: 1 if is_code else None] if named.start() >= end else ():
            if found := pattern.match(text, named.end()):
                end = found.end() if found.end() - named.end() > LONG_VALUE else end
                if _is_assigned(named["name"], found, named.start(), pattern is not BY_SIGN, is_code):
                    yield named.start(), found["quoted"] or found["bare"]
    if is_code:
        return
    for pattern in TOGETHER:
        for found in pattern.finditer(text):
            if _is_assigned(found["name"], found, found.start(), True, is_code):
                yield found.start(), found["quoted"] or found["bare"]
    heads, at = list[str](), 0  # of a table, whose column below such a name has values
    for line in text.splitlines(keepends=True):
        sign = next((each for each in _HEADS if each in line), "")
        cells = [cell.strip(" `*_\"'\r\n") for cell in line.strip(" |\r\n").split(sign)] if sign else []
        if len(cells) < 2 or len(cells) != len(heads):
            heads = cells if sign and all(_HEADS[sign].fullmatch(cell) for cell in cells) else []
        elif not all(_RULE.fullmatch(cell) for cell in cells):
            for head, cell in zip(heads, cells, strict=True):
                if is_secret_value(head, cell) and (_kind_of(head) == "secret" or is_random(cell)):
                    yield at, cell
        at += len(line)


def secrets_by_form(text: str) -> Iterator[tuple[int, str, str]]:
    """The place of each secret in a text, its kind, and the secret itself, by its form."""
    for kind, pattern in FORMS.items():
        for found in pattern.finditer(text):
            if not pattern.groups or is_random(found[1]):
                yield found.start(), kind, found[pattern.groups]
    for found in BEGUN.finditer(text):
        if is_random(found[1]):
            yield found.start(), "key of a service", found[0]
    for found in BASIC.finditer(text):
        bare, decoded = found[1].rstrip("="), b""
        with suppress(ValueError):  # it is no base64
            decoded = base64.b64decode(bare + "=" * (-len(bare) % 4))
        if re.fullmatch(rb"[\x20-\x39\x3b-\x7e]*:[\x20-\x7e]+", decoded):
            yield found.start(), "authorization", found[1]
    for pattern, commands in COMMANDS.items():
        for found in pattern.finditer(text):
            before = text[max(found.start() - LONGEST_COMMAND, 0) : found.start()].rpartition("\n")[2]
            if re.search(rf"(?<![\w-])(?:{commands})(?![\w-])", before) and not is_placeholder(found[1]):
                yield found.start(), "password of a command", found[1]
