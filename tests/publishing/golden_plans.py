"""
What `push` publishes of a folder of each kind: `golden_plans.json` beside this file.

Run this file to record all anew, and say in the commit what changed and why that is right.
"""

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from pictures import png
from transformers import Speech2TextProcessor

import vanilla_transformer_hf as package
from vanilla_transformer_hf.evaluation.scores import Scores
from vanilla_transformer_hf.export.int8_folder import quantize_folder
from vanilla_transformer_hf.publishing.model_card import (
    CardFacts,
    ConversionFacts,
    ScoredText,
    SourceFile,
    write_card,
)
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


RECORD = Path(__file__).with_suffix(".json")
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SCORED = [ScoredText("test", Scores(41.05, 65.89, 2.3, "tok:13a", "nc:6", 1000))]
CONVERSION = ConversionFacts(
    "opus", "vanilla-transformer convert opus x y", [SourceFile("model.npz", 9, "ab" * 32)], 0.0, 1e-6, 40, (9, 9)
)
RUN = {"corpus": "number words", "pairs": 40, "steps": 3, "epochs": 1.5, "minutes": 2.0, "device": "a CPU"}
# Kind of a folder -> its class, fields of its config, and what its card says.
KINDS = {
    "translation": ("ForConditionalGeneration", {}, CardFacts(**RUN, scored=SCORED, settings={"dropout": 0.3})),
    "fine_tuned": (
        "ForConditionalGeneration",
        {"position_encoding": "rotary"},
        CardFacts(**RUN, further=True, origin=["Its weights were another's."], before=SCORED, datasets=["a/b"]),
    ),
    "denoising": ("ForConditionalGeneration", {}, CardFacts(task="denoising", languages=["wo"])),
    "converted": ("ForConditionalGeneration", {}, CardFacts(conversion=CONVERSION, base_model="theirs/opus")),
    "base": ("Model", {}, CardFacts()),
    "encoder": ("EncoderModel", {}, CardFacts()),
    "masked": ("ForMaskedLM", {}, CardFacts(example="one two", measured={"test": {"accuracy": 0.5}})),
    "writer": ("ForCausalLM", {"norm_type": "rms_norm"}, CardFacts(name="someone/writer")),
    "tagger": ("ForTokenClassification", {"num_labels": 3}, CardFacts(license="cc0-1.0")),
    "speech": ("ForSpeechSeq2Seq", {"front_end": "speech", "num_mel_bins": 12}, CardFacts(source_lang="en")),
    "recurrent": ("RecurrentSeq2SeqForConditionalGeneration", {}, CardFacts(**RUN)),
}
STATED = {"license": "cc-by-4.0", "datasets": ["someone/pairs"], "source_lang": "en", "target_lang": "de"}


def make_folder(kind: str, folder: Path) -> None:
    """Save a tiny model of a kind as training leaves it, with its tokenizer, card and curves."""
    torch.manual_seed(0)
    name, fields, facts = KINDS.get(kind, KINDS["translation"])
    tokenizer = package.VanillaTransformerTokenizer.train(
        ["one two"], ["eins"], vocab_size=270, src_lang="en", tgt_lang="de", show_progress=False
    )
    if name.startswith("Recurrent"):
        config = package.RecurrentSeq2SeqConfig(vocab_size=len(tokenizer), d_model=16)
        model = getattr(package, name)(config)
    else:
        config = package.VanillaTransformerConfig(**{**SIZES, "vocab_size": len(tokenizer), **fields})
        model = getattr(package, f"VanillaTransformer{name}")(config)
    model.save_pretrained(folder, **({"max_shard_size": "10KB"} if kind == "sharded" else {}))
    processor = Speech2TextProcessor(package.VanillaTransformerFeatureExtractor(12, 8000), tokenizer)
    (processor if kind == "speech" else tokenizer).save_pretrained(folder)
    (folder / "training_curves.png").write_bytes(png())
    (folder / "training_args.bin").touch()
    (folder / "checkpoints").mkdir()
    write_card(facts, folder)
    if kind == "edited":
        card = folder / "README.md"
        card.write_text(card.read_text(encoding="utf-8").replace("# ", "# My ", 1), encoding="utf-8")


def plans(kind: str, place: Path) -> list[dict]:
    """
    The plan of a folder of this kind, alone and with what its publisher states, the card as a digest; without what
    depends on releases, sizes of files and the names of modules that travel.
    """
    folder = place / kind
    make_folder(kind, folder)
    stated = [{}, STATED]
    if kind == "int8":
        folder, source = place / "int8-folder", folder
        quantize_folder(source, folder)
    elif kind == "adapter":
        model, folder = package.VanillaTransformerForConditionalGeneration.from_pretrained(folder), place / "lora"
        get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM")).save_pretrained(folder)
        stated = [{"base_model": "someone/base"}, STATED | {"base_model": "someone/base"}]
    found = []
    for given in stated:
        plan = plan_upload(folder, "someone/numbers", **given)
        files = sorted({"*.py" if file.name.endswith(".py") else file.name for file in plan.files})
        card = re.sub(r"PEFT \S+|- Using.*", "", plan.card)  # releases of PEFT
        digest = hashlib.sha256(card.encode()).hexdigest()[:16]
        found.append({"files": files, "left out": plan.left_out, "missing": plan.missing, "card": digest})
    return found


ALL = [*KINDS, "sharded", "edited", "int8", "adapter"]


if __name__ == "__main__":
    record = {}
    for each in sys.argv[1:] or ALL:
        with tempfile.TemporaryDirectory() as made:
            record[each] = plans(each, Path(made))
    rows = (f"{json.dumps(kind)}: {json.dumps(found, ensure_ascii=False)}" for kind, found in record.items())
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
