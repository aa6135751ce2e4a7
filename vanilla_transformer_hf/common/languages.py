"""Languages as lingua, which tells what language a text is in, names them."""

from typing import Any


def lingua_languages() -> dict[str, Any]:
    """
    ISO 639-3 code, as langcodes' `to_alpha3` gives it -> lingua's language, for all that it knows.

    Raises:
        ImportError: lingua is not installed.
    """
    import lingua

    return {str(each.iso_code_639_3.name).lower(): each for each in lingua.Language.all()}
