"""Text from places that can hold what is no character: JSON, and arguments of commands."""

import argparse


def as_text(text: str) -> str:
    """Text of characters: lone surrogates become their escapes."""
    return text.encode(errors="backslashreplace").decode()


def text_argument(text: str) -> str:
    """An argument of a command that is a text: `type=` of `add_argument`."""
    if as_text(text) != text:
        raise argparse.ArgumentTypeError(f"'{as_text(text)[:60]}' is not UTF-8: write it in this encoding")
    return text
