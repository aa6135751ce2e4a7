"""
Train MarianMT's architecture as transformers' examples train a translation model: `Seq2SeqTrainer`, sentences in
batches of like lengths, early stopping by chrF. Continues from its last checkpoint. Then translate by the best model:

    python script_marianmt_train.py SETTINGS.json
"""

import json
import sys
from pathlib import Path

import datasets
import sacrebleu
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import decoders as text_decoders
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding of both languages, with spaces as SentencePiece writes them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = text_decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


given = json.loads(Path(sys.argv[1]).read_text())
folder, sizes = Path(given["folder"]), given["sizes"]
text = {
    role: {side: Path(path).read_text(encoding="utf-8").splitlines() for side, path in paths.items()}
    for role, paths in given["text"].items()
}
set_seed(given["seed"])
tokenizer = train_tokenizer([*text["train"]["source"], *text["train"]["target"]], given["vocab_size"])
data = {
    role: datasets.Dataset.from_dict(dict(tokenizer(sides["source"], text_target=sides["target"]))).remove_columns(
        ["token_type_ids"] if "token_type_ids" in tokenizer.model_input_names else []
    )
    for role, sides in text.items()
}
config = MarianConfig(
    vocab_size=len(tokenizer),
    pad_token_id=0,
    eos_token_id=1,
    forced_eos_token_id=1,
    decoder_start_token_id=0,
    scale_embedding=True,
    activation_function="relu",
    **sizes,
)
model = MarianMTModel(config)


def chrf(predicted) -> dict[str, float]:
    ids = torch.tensor(predicted.predictions).clamp(min=0)
    lines = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return {"chrf": sacrebleu.corpus_chrf(lines, [text["validation"]["target"]]).score}


arguments = Seq2SeqTrainingArguments(
    output_dir=str(folder / "checkpoints"),
    seed=given["seed"],
    per_device_train_batch_size=given["sentences"],
    per_device_eval_batch_size=given["evaluated"],
    train_sampling_strategy="group_by_length",
    learning_rate=given["learning_rate"],
    lr_scheduler_type="inverse_sqrt",
    warmup_steps=0.1,
    adam_beta2=0.98,
    label_smoothing_factor=given["label_smoothing"],
    max_steps=given["most_updates"],
    bf16=given["bf16"],
    eval_strategy="steps",
    eval_steps=given["evaluate_every"],
    save_strategy="steps",
    save_steps=given["evaluate_every"],
    logging_steps=given["evaluate_every"],
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="chrf",
    predict_with_generate=True,
    generation_max_length=given["max_length"],
    generation_num_beams=1,
    use_cpu=not torch.accelerator.is_available(),
    dataloader_pin_memory=False,
    disable_tqdm=True,
    report_to=[],
)
trainer = Seq2SeqTrainer(
    model=model,
    args=arguments,
    train_dataset=data["train"],
    eval_dataset=data["validation"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
    compute_metrics=chrf,
    callbacks=[EarlyStoppingCallback(given["patience"])],
)
checkpoints = folder / "checkpoints"
trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
print(json.dumps({"updates": trainer.state.global_step, "best": trainer.state.best_metric}))
for role in ("validation", "test"):
    found = trainer.predict(data[role], max_length=given["max_length"], num_beams=given["beams"])
    ids = torch.tensor(found.predictions).clamp(min=0)
    lines = tokenizer.batch_decode(ids, skip_special_tokens=True)
    (folder / f"{role}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
