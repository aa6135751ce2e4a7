"""
Real checkpoints made by the toolkits themselves, with the logits and outputs that they recorded: they are kept beside
the repository, and tests of them are skipped without.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from kept_beside import kept_beside

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import convert


PEERS = kept_beside("peers")
SOURCES = {
    **{name: name for name in ("annotated", "eole", "fairseq", "fsmt", "joeynmt")},
    **{"fairseq09": "fairseq", "marian": "marianmt", "opennmt": "opennmt_py", "t2t": "tensor2tensor"},
    "torchnn": "torch_nn",
}
# What no file of theirs says.
SETTINGS = {
    "annotated-a": {"h": 4},
    "torchnn-a-postnorm": {"nhead": 4, "norm_first": False, "vocabulary": "vocab_words.json"},
}
# Largest differences of logits: the norm of the Annotated Transformer is an approximation here.
MOST = {"annotated-a": 2e-5}


def of_all(*sources):
    """A test of each sample, or of each of these sources."""
    names = sorted(path.name for path in PEERS.glob("*") if path.is_dir())
    names = [name for name in names if not sources or SOURCES[name.partition("-")[0]] in sources]
    return pytest.mark.parametrize("name", names or [pytest.param("", marks=pytest.mark.skip(reason="no samples"))])


def pieces_of(name, tokenizer):
    """Ids of the pieces of both sides, as the toolkit writes them."""
    if name.startswith("joeynmt"):  # the tokenizer has its own marks
        files = [(PEERS / name / f"{side}_vocab.txt").read_text(encoding="utf-8") for side in ("src", "trg")]
        return [{piece: place for place, piece in enumerate(text.splitlines())} for text in files]
    return tokenizer.source_backend_tokenizer.get_vocab(), tokenizer.get_vocab()


def check_pieces(tokenizer, record, source, target):
    unknown = record.get("unk")
    for number, text in enumerate(record["src_text"]):
        ids = [source.get(token, unknown) for token in record.get("src_tokens", {number: text.split()})[number]]
        if "src_tokens" not in record:
            ids = [record["bos"], *ids, record["eos"]]
        assert tokenizer(text)["input_ids"] == ids
    for text, tokens in zip(record["tgt_text"], record.get("tgt_in_tokens", ()), strict=False):
        ids = [target.get(token, unknown) for token in tokens[1:]]
        assert tokenizer(text_target=text)["input_ids"][: len(ids)] == ids


def own_tokens(ids, config):
    """Ids of one output without the start token before and the end token and padding behind."""
    if ids and ids[0] == config.decoder_start_token_id:
        ids = ids[1:]
    return ids[: ids.index(config.eos_token_id)] if config.eos_token_id in ids else ids


def check_greedy(model, path, place, tokenizer):
    """
    The model finds the outputs of a `ref.json` beside the reference: ids, pieces (their ids are in `place`), or texts.

    A toolkit cuts outputs at its limit, which is a number of tokens, or the source's length plus a number. The record
    does not say which were cut. So an output that reaches such a limit, by the longest of the record, agrees if the
    model's begins with it.
    """
    with np.load(path) as arrays:
        source, mask = torch.from_numpy(arrays["src_ids"]).long(), torch.from_numpy(arrays["src_mask"]).long()
    outputs = json.loads(path.with_name("ref.json").read_text(encoding="utf-8"))["greedy"]
    assert len(outputs) == len(source) > 0
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
    written = tokenizer.batch_decode(found, skip_special_tokens=True) if texts else []
    for row, (other, whole) in enumerate(zip(theirs, ids, strict=True)):
        own = own_tokens(found[row], model.config)
        if own == other or (texts and written[row] == outputs[row]):
            continue
        # Retokenized, a text that was cut within a word may have a token more or less.
        assert len(whole) >= longest - 1 or len(other) >= int(mask[row].sum()) + beyond - texts, row
        length = min(len(other), longest - 2)
        assert written[row].startswith(outputs[row]) if texts else own[:length] == other[:length], row


@of_all()
def test_logits_pieces_and_outputs_are_those_of_the_toolkit(name, tmp_path):
    folder, source = PEERS / name, SOURCES[name.partition("-")[0]]
    if name in SETTINGS:
        folder = shutil.copytree(folder, tmp_path / "run")
        (folder / "settings.yaml").write_text(yaml.safe_dump(SETTINGS[name]), encoding="utf-8")
    given = source if source == "annotated" else "auto"
    done = convert(given, folder, tmp_path / "out", reference=folder / "ref.npz")
    assert (done.source, done.reopened) == (source, 0) and done.reference <= MOST.get(name, 1e-5)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out", dtype=torch.float32)
    record = json.loads((folder / "ref.json").read_text(encoding="utf-8"))
    tokenizer, pieces = None, {}
    if (tmp_path / "out" / "tokenizer.json").is_file():
        tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
        source_pieces, pieces = pieces_of(name, tokenizer)
        check_pieces(tokenizer, record, source_pieces, pieces)
    check_greedy(model, folder / "ref.npz", pieces, tokenizer)
    with np.load(folder / "ref.npz") as arrays:
        batch = {"input_ids": arrays["src_ids"], "attention_mask": arrays["src_mask"]}
    batch = {key: torch.from_numpy(array).long() for key, array in batch.items()}
    ends = (model.config.pad_token_id, model.config.eos_token_id, model.config.decoder_start_token_id)

    def same(found, expected):
        found, expected = ([token for token in ids if token not in ends] for ids in (found.tolist(), expected))
        assert found == expected

    for key in [key for key in record if key.startswith("beam") and f"{key}_settings" in record]:
        settings, theirs = record[f"{key}_settings"], record[key]
        if source == "joeynmt":  # the same sentences in nearly all cases, or better ones
            options = {"length_penalty": settings["beam_alpha"], "return_dict_in_generate": True}
            scores = model.generate(**batch, **options).sequences_scores.tolist()
            assert all(own >= other["score"][0] - 1e-4 for own, other in zip(scores, theirs, strict=True)), key
            continue
        if source == "fairseq":
            limit = settings["max_len_b"] + 1
            settings = {
                "num_beams": settings["beam"],
                "length_penalty": float(settings["lenpen"]),
                "max_new_tokens": limit,
            }
        for own, other in zip(model.generate(**batch, **settings), theirs, strict=True):
            same(own, other["ids"] if source == "fairseq" else other)


def test_heads_that_no_file_says_the_reference_tells(tmp_path):
    if not (folder := PEERS / "annotated-a").is_dir():
        pytest.skip("no samples")
    done = convert("annotated", folder, tmp_path / "out", reference=folder / "ref.npz")
    assert done.reference <= MOST["annotated-a"]
    assert any(note.startswith("h=4: not in the files; found as") for note in done.notes)
