"""Languages by the names of lingua, which identifies the language of a text."""

from typing import Any


def lingua_languages() -> dict[str, Any]:
    """ISO 639-3 code, as langcodes' `to_alpha3` gives it -> lingua's language, for all that it supports."""
    import lingua

    return {str(each.iso_code_639_3.name).lower(): each for each in lingua.Language.all()}
