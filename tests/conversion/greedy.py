"""Greedy outputs that a toolkit recorded, in a `ref.json` beside its logits, against those of the converted model."""

import json
from typing import NamedTuple

import numpy as np
import torch


class Agreement(NamedTuple):
    """Greedy outputs of the toolkit: how many the model repeats, how many there are, and how many were cut short."""

    same: int
    all: int
    cut: int


def own_tokens(ids, config):
    """Ids of one output without the start token before and the end token and padding behind."""
    if ids and ids[0] == config.decoder_start_token_id:
        ids = ids[1:]
    return ids[: ids.index(config.eos_token_id)] if config.eos_token_id in ids else ids


def compare_greedy(model, path, place, tokenizer=None) -> Agreement:
    """
    Compare the model with the outputs of a `ref.json` beside the reference: ids, pieces, whose ids are in `place`, or
    texts.

    A toolkit cuts outputs at its limit, which is a number of tokens, or the source's length plus a number. The record
    does not say which were cut. So an output that reaches such a limit, by the longest of the record, agrees if the
    model's begins with it.
    """
    with np.load(path) as arrays:
        source, mask = torch.from_numpy(arrays["src_ids"]).long(), torch.from_numpy(arrays["src_mask"]).long()
    outputs = json.loads(path.with_name("ref.json").read_text(encoding="utf-8"))["greedy"]
    assert len(outputs) == len(source)
    texts = all(isinstance(output, str) for output in outputs)
    if texts:
        ids = tokenizer(text_target=outputs)["input_ids"]
    else:
        ids = [
            output if isinstance(output, list) else output.get("ids") or [place[piece] for piece in output["tokens"]]
            for output in outputs
        ]
    longest = max(map(len, ids))
    with torch.no_grad():
        found = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=longest + 1).tolist()
    theirs = [own_tokens(output, model.config) for output in ids]
    beyond = max(len(output) - int(length) for output, length in zip(theirs, mask.sum(1), strict=True))
    same = cut = 0
    written = tokenizer.batch_decode(found, skip_special_tokens=True) if texts else []
    for row, (other, whole) in enumerate(zip(theirs, ids, strict=True)):
        own = own_tokens(found[row], model.config)
        if own == other or (texts and written[row] == outputs[row]):
            same += 1
        # Retokenized, a text that was cut within a word may have a token more or less.
        elif len(whole) >= longest - 1 or len(other) >= int(mask[row].sum()) + beyond - texts:
            length = min(len(other), longest - 2)
            begins = written[row].startswith(outputs[row]) if texts else own[:length] == other[:length]
            same, cut = same + begins, cut + begins
    return Agreement(same, len(outputs), cut)
