"""Vocabularies of the toolkits as backends of our tokenizer: every id is the toolkit's own."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from ..text_files import read_lines
from .mapping import ConversionError


def check_unique(tokens: Sequence[str], where: str):
    """
    Raises:
        ConversionError: A token stands twice in a vocabulary, so that it would have two ids.
    """
    seen: set[str] = set()
    twice = [token for token in tokens if token in seen or seen.add(token)]  # type: ignore[func-returns-value]
    if twice:
        raise ConversionError(f"{where}: {', '.join(map(repr, twice[:5]))} stand more than once")


def ends_with(backend: Tokenizer, token: str | None) -> Tokenizer:
    """The backend, which puts `token` behind every text; None puts nothing."""
    if token is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {token}",
            pair=f"$A {token} $B {token}",
            special_tokens=[(token, backend.token_to_id(token))],
        )
    return backend


def words(tokens: Sequence[str], unk: str, where: str = "vocabulary") -> Tokenizer:
    """Words divided by white space, each with its place in `tokens` as its id; any other word is `unk`."""
    check_unique(tokens, where)
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    return backend


def read_token_file(path: Path) -> list[str]:
    """The first column of a vocabulary with one token per line."""
    return [line.rsplit(" ", 1)[0] for line in read_lines(path) if line]
