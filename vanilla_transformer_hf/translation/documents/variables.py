"""
Variables and what else is no language in texts: one list of its kinds for all documents.

A catalogue may say in which format a message is; then its variables are those of that format, and else those of all.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache

from .inline import ENTITY, Piece, apart


# Behind the flags of C's printf; bounded, so that time grows with the length alone.
_WIDTH = r"(?:\d{1,4}|\*(?:\d{1,2}\$)?)?"
_CONVERSION = rf"{_WIDTH}(?:\.{_WIDTH})?(?:hh|ll|I64|I32|[hlLzjtq])?[diouxXeEfFgGaAcCrsSpn@%]"
_FIXED = r"%[-+ #0]{0,5}\d{0,4}<PRI[A-Za-z]{1,9}\d{0,2}>"
_ADDRESS = r"\s<>\"'\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
KINDS = {
    name: re.compile(pattern)
    for name, pattern in {
        # Formats of programs. Where none is declared, 50%er and 5 % der are no variables.
        "printf": rf"%(?:\d{{1,2}}\$)?[-+ #0'I]{{0,6}}{_CONVERSION}|{_FIXED}|%m",
        "any printf": rf"%%|(?<!\d)%(?:\d{{1,2}}\$)?[-+#0'I]{{0,6}}{_CONVERSION}|{_FIXED}",
        "named": r"%\([^()\s]{1,99}\)[-+ #0]{0,5}[\d.*]{0,9}[hlL]?[diouxXeEfFgGcrsa]",
        "ruby": r"%<(?P<key>[A-Za-z_]\w{0,99})>[-+#0 ]{0,5}[\d.]{0,9}[diouxXeEfFgGcsbBaAp](?!\w|</(?P=key)>)",
        "between": r"%[A-Za-z_][\w.-]{1,99}%(?![\w%])",  # %field%
        "word": r"(?<!\d)%[A-Za-z_][A-Za-z0-9_]{1,99}",  # %name
        "at": r"@@\w{1,99}@@|(?<![\w.@+-])@[A-Za-z_][\w-]{0,99}",  # @count, and @names of people
        "pascal": r"%\d{1,2}:-?\d{0,4}(?:\.\d{1,4})?[a-z]",
        "qt": r"%L?\d{1,2}|%n",
        "boost": r"%\d{1,2}%|%\|[^|\s]{1,99}\|",
        "braces": r"[$%#]?\{[^{}\n]{0,99}\}",
        "brackets": r"[$%#]?\{\{\{?[^{}\n]{0,199}\}?\}\}|\{%[^{}\n]{0,199}%\}|<%[^<>\n]{0,199}%>|\[%[^][\n]{0,199}%]",
        "shell": r"\$[A-Za-z_]\w{0,99}|\$[1-9](?!\w)",
        "colon": r"(?<![\w:]):[A-Za-z_]\w{0,99}",
        "tilde": r"~[-,:@'\d]{0,9}[A-Za-z%~]",
        "quoted": r"'[{}#|][^']{0,999}'",  # ICU
        # What is no variable, and still no language.
        "escape": r"\\[nrthN]",
        "entity": ENTITY.pattern,
        "address": rf"(?:(?:https?|ftp)://|www\.)[^{_ADDRESS}]{{0,1999}}[^{_ADDRESS}.,;:!?()\[\]]",
        "mail": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,9}",
        "path": r"(?<![\w/.~])(?:~|\.{1,2})?(?:/[\w.+-]{0,98}[\w+-]){2,99}|(?<!\w)[A-Za-z]:\\[^\s\"'<>|*?]{1,199}",
        "option": r"(?<![\w-])(?:--[A-Za-z][\w-]{1,49}|-[A-Za-z])(?![\w-])",
    }.items()
}
NO_LANGUAGE = ("address", "mail", "path", "option", "brackets", "braces", "entity", "escape")
# In texts of people: {{ name }}, {name}, %(name)s, %s, %1$s, %name%, @name.
PROSE = ("address", "mail", "brackets", "braces", "named", "between", "any printf", "at")
PROGRAMS = (
    *("address", "mail", "path", "option", "brackets", "ruby", "braces", "named", "boost", "between", "pascal"),
    *("word", "any printf", "qt", "shell", "at", "entity", "escape"),
)
# What flags of gettext and Weblate call formats, and names of file formats in XLIFF, without "-format".
FORMATS = {
    **dict.fromkeys(("c", "objc", "perl", "php", "java-printf", "javascript", "sh-printf", "lua", "awk", "tcl", "go",
                     "d", "modula2", "gcc-internal", "gfc-internal", "ycp"), ("printf",)),
    **dict.fromkeys(("python-brace", "perl-brace", "csharp", "rust", "c++", "cpp", "vue"), ("braces",)),
    **dict.fromkeys(("java", "icu-message"), ("braces",)),
    **dict.fromkeys(("qt", "qt-plural", "kde", "kde-kuit", "smalltalk"), ("qt",)),
    **dict.fromkeys(("lisp", "elisp", "librep", "scheme"), ("tilde",)),
    "python": ("named", "printf"),
    "ruby": ("ruby", "named", "braces", "printf"),
    "boost": ("boost", "printf"),
    "object-pascal": ("pascal", "printf"),
    "sh": ("shell", "braces"),
    "es-template": ("braces",),
    "laravel": ("colon",),
    "percent-placeholders": ("between",),
    "i18next-interpolation": ("brackets",),
}  # fmt: skip


# What a text has in which one of a kind is, if no percent sign: most texts have none, and need no search.
SIGNS = {
    **{
        "address": ("://", "www."),
        "mail": ("@",),
        "at": ("@",),
        "path": ("/", "\\"),
        "option": ("-",),
        "shell": ("$",),
    },
    **{"braces": ("{",), "brackets": ("{", "%"), "entity": ("&",), "escape": ("\\",), "quoted": ("'",)},
    **{"colon": (":",), "tilde": ("~",)},
}


@cache
def pattern_of(kinds: tuple[str, ...]) -> re.Pattern[str]:
    """The pattern of some of the `KINDS`; of two at one place, the first."""
    return re.compile("|".join(KINDS[kind].pattern for kind in kinds))


@cache
def signs_of(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The signs of some of the `KINDS`."""
    return tuple({sign: None for kind in kinds for sign in SIGNS.get(kind, ("%",))})


def without_variables(pieces: Iterable[Piece], kinds: tuple[str, ...]) -> Iterator[Piece]:
    """Pieces in which the variables of the texts are codes."""
    return apart(pieces, pattern_of(kinds), "alone", signs_of(kinds))


def declared_kinds(flags: Iterable[str]) -> tuple[str, ...]:
    """The kinds of variables of a message with these flags, such as `python-format`; of all programs without one."""
    names = [flag.strip().removesuffix("-format") for flag in flags]
    kinds = dict.fromkeys(kind for name in names for kind in FORMATS.get(name, ()))
    return (*kinds, *NO_LANGUAGE) if kinds else PROGRAMS
