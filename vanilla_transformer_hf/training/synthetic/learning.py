"""The recipe of a model that learns synthetic pairs beside the real ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...common.opening import open_tokenizer
from ..arguments import DataArguments
from ..data.corpora import load_corpora
from ..data.corpus import iterate_texts
from ..data.parts import refuse_several
from .mixing import write_mixed
from .noise import BLANK
from .synthetic_text import Side, SyntheticText


def languages_of(model: str, side: Side, data: DataArguments | None) -> tuple[str, str]:
    """The languages of source and target: the recipe's, or those of the model's tokenizer."""
    known = open_tokenizer(model).init_kwargs
    of_model = known.get("src_lang"), known.get("tgt_lang")
    found = of_model if side == "source" else of_model[::-1]
    if data is None:
        return found[0] or "source", found[1] or "target"
    wanted = data.source_lang, data.target_lang
    for ours, theirs in zip(wanted, found):
        if ours and theirs and ours != theirs:
            needed = wanted if side == "source" else wanted[::-1]
            raise ValueError(
                f"{model} translates from {of_model[0]} to {of_model[1]}: this recipe and text of its {side} "
                f"language need a model from {needed[0]} to {needed[1]}; --reverse trains one by the same recipe"
            )
    return wanted[0] or found[0] or "source", wanted[1] or found[1] or "target"


def held_out_texts(data: DataArguments, side: Side) -> list[str]:
    """The texts on this side of the validation and the test corpus, which must not be learned."""
    corpora = load_corpora(replace(data, train_source=None))
    return [text for corpus in corpora.values() for text in iterate_texts(corpus, side)]


def fields_of_pairs(
    data: DataArguments, wanted: SyntheticText, files: tuple[Path, Path], rate: tuple[int, int] | None, folder: Path
) -> dict[str, Any]:
    """Write a recipe's pairs mixed with synthetic ones; returns its fields to train on them, without train_target."""
    if data.drop_duplicates and rate is not None:
        raise ValueError(
            "drop_duplicates would leave out the pairs that the rate repeats: add --drop_duplicates false"
        )
    refuse_several(data, "back-translate")
    if not data.train_source:
        raise ValueError("train_source is not given: name the real pairs that synthetic ones are mixed with")
    fields: dict[str, Any] = {"train_source": str(write_mixed(data, files, rate, folder))}
    if not data.corpus_name and not Path(data.train_source).exists():  # a file is not named after its data set
        fields["corpus_name"] = data.train_source
    known = [*(data.source_tags or ()), *(f"<2{language}>" for language in data.target_lang_tags or ())]
    new = wanted.tag.split()  # and what noise puts in the place of words
    new += [BLANK] if wanted.noise is not None and wanted.noise.replace else []
    if tags := [*(data.source_tags or ()), *(tag for tag in new if tag not in known and wanted.side == "target")]:
        fields["source_tags"] = tags
    return fields


def about(wanted: SyntheticText, rate: tuple[int, int] | None, texts: Sequence[str]) -> str:
    """A sentence on the synthetic text for the card of the model that has learned it."""
    names = " and ".join(Path(text).name for text in texts)
    how = "natural amounts" if rate is None else f"the rate {rate[0]} real to {rate[1]} synthetic"
    made = "sources" if wanted.side == "target" else "targets"
    tagged = f", marked {wanted.tag}" if wanted.tag and wanted.side == "target" else ""
    return (
        f"Trained on synthetic text, too: {Path(wanted.search.model).name} translated {names} into {made}{tagged}; "
        f"{how}."
    )
