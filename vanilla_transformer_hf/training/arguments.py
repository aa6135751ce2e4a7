"""A run's own arguments, with what `train --help` says, fast: nothing here imports torch or transformers."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..common.choices import TooLongToTrain
from ..model.config.presets import PRESETS


class Help(str):
    """The help of an option, and what the option demands of others, said once: here."""

    excludes: dict[str, str]  # names of fields, in one text -> why they and this one exclude each other
    needs: str | None  # the field without which this one has no effect, or "field=value"
    at_least: float | None


def _help(
    text: str,
    default: Any = None,
    *,
    excludes: dict[str, str] | None = None,
    needs: str | None = None,
    at_least: float | None = None,
) -> Any:
    about = Help(text)  # transformers' parser gives all metadata to argparse, so that other keys would be errors
    about.excludes, about.needs, about.at_least = excludes or {}, needs, at_least
    return field(default=default, metadata={"help": about})


TEXTS = "train_source train_target validation_source validation_target test_source test_target"
# Transformers' and our options of batches that are filled by sentences.
OF_SENTENCES = (
    "per_device_train_batch_size gradient_accumulation_steps train_sampling_strategy curriculum_steps "
    "dataloader_drop_last dataloader_prefetch_factor dataloader_persistent_workers"
)


@dataclass
class DataArguments:
    """The text and the limits of its sentences."""

    task: Literal[
        "translation",
        "denoising",
        "masked_lm",
        "causal_lm",
        "classification",
        "token_classification",
        "speech",
        "image",
    ] = _help(
        "what is learned; denoising: an encoder-decoder restores text of one or several languages (train_text), to be "
        "fine-tuned on pairs; masked_lm to token_classification train one stack on plain-text lines (train_source), "
        "for classification with the class of each line in train_target, for token_classification with the classes of "
        "its words; speech and image: the texts of recordings or images, from folders with files and texts.tsv",
        "translation",
    )
    train_source: str | None = _help(
        "training text: a plain-text file (with train_target), a file that holds both sides (.tsv, .csv, .jsonl, "
        ".parquet, .xlsx, .tmx, .xlf, .po, Excel's Unicode text), a folder saved by `datasets`, or the id of a "
        "dataset on the Hub; text files may be .gz"
    )
    train_target: str | None = _help("the translations of a plain-text train_source, line by line")
    validation_source: str | None = _help("text that is scored during training and at its end; as train_source")
    validation_target: str | None = _help("the translations of a plain-text validation_source")
    test_source: str | None = _help("text that is scored once, at the end; as train_source")
    test_target: str | None = _help("the translations of a plain-text test_source")
    corpora: dict[str, Any] | str | None = _help(
        "several corpora, in place of the fields above: for each a name, these fields, languages and columns, and the "
        "rate of its pairs, in a recipe or in a YAML file that is named here",
        excludes={
            TEXTS: "say it of one of the corpora",
            "streaming": "the sizes of streams are not known",
            "curriculum_steps": "rates decide which rows a batch has",
        },
    )
    by_pairs: dict[int, Any] | str | None = _help(
        "sizes by the number of training pairs, in a recipe: for some numbers fields of a new model, and bpe_dropout. "
        "A run has those of the number that is nearest to its own, but for fields that are set outside of by_pairs"
    )
    corrections: str | None = _help(
        "translations that the model is to learn, such as what `serve --suggestions` keeps: a file of both sides. The "
        "text of the fields above is what it has learned from, and is seen beside them",
        excludes={
            "corpora": "corrections may be one of the corpora",
            "streaming curriculum_steps": "corrections are mixed by rates",
        },
    )
    replay: float = _help("pairs of that text for each of the corrections", 4.0, needs="corrections", at_least=0)
    corpus_temperature: float | None = _help(
        "T of the rates n^(1/T) of corpora of n pairs, such as 5; if not given, and without rates, an epoch has each "
        "pair once",
        needs="corpora",
    )
    train_text: list[str] | None = _help(
        "text of denoising: plain-text files, a text on each line, or files that hold both sides, as train_source, of "
        "which each side is a text"
    )
    validation_text: list[str] | None = _help("text that is restored during training and at its end; as train_text")
    test_text: list[str] | None = _help("text that is restored once, at the end; as train_text")
    text_langs: list[str] | None = _help(
        "languages of the plain-text files of train_text, in their order, and so of validation_text and test_text; "
        "needed where the tokenizer has tags of languages"
    )
    noise: Literal["infilling", "infilling_permuted", "masking", "deletion", "mass", "spans"] = _help(
        "what denoising does to a text: spans become one mask each, also with sentences in another order (BART); "
        "single tokens are masked or deleted; a fragment is masked and predicted (MASS); spans become sentinels and "
        "are predicted (T5)",
        "infilling",
    )
    noise_rate: float | None = _help(
        "share of the tokens that noise changes; if not given, that of its paper: 0.3 for infilling, 0.5 for mass, "
        "0.15 for others"
    )
    span_length: float | None = _help("mean number of tokens of a span of infilling and spans; if not given, 3")
    dataset_config_name: str | None = _help("configuration of a dataset on the Hub")
    train_split: str = _help("split of a saved folder or of a dataset on the Hub", "train")
    validation_split: str = _help("split of validation_source, likewise", "validation")
    test_split: str = _help("split of test_source, likewise", "test")
    source_lang: str | None = _help("code of the source language, such as en; names a column too")
    target_lang: str | None = _help("code of the target language")
    target_lang_tags: list[str] | None = _help(
        "languages of a multilingual model, such as de en: each training source begins with the tag of the language "
        "that it is translated to, such as <2de>, which a new tokenizer has as a token"
    )
    source_tags: list[str] | None = _help(
        "more tokens in training sources that are not text, such as <bt> before synthetic ones; tokenizers and "
        "models that do not have them get them"
    )
    reverse: bool = _help(
        "exchange source and target of everything that the recipe names: a model of the other direction, for "
        "back-translation",
        False,
    )
    source_column: str | None = _help("column of the source text, if it is not named by its language or 'source'")
    target_column: str | None = _help("column of the target text, if it is not named by its language or 'target'")
    corpus_name: str | None = _help(
        "name of the corpus in the model card; if not given, the id of a dataset on the Hub: files have no name"
    )
    streaming: bool = _help(
        "read the training text while training, for text larger than the disk; needs max_steps",
        False,
        excludes={"drop_duplicates": "the pairs of a stream are not kept"},
        needs="tokens_per_step",
    )
    max_source_length: int = _help("maximum number of tokens of a source sentence", 256)
    max_target_length: int = _help("maximum number of tokens of a target sentence, also in generation", 256)
    too_long: TooLongToTrain = _help("what happens to longer training pairs; held-out text is truncated", "drop")
    max_length_ratio: float | None = _help(
        "leave out training pairs with a side over this many times as long as the other", at_least=1
    )
    drop_duplicates: bool = _help("leave out training pairs that occurred before", False)
    bpe_dropout: float = _help(
        "probability of skipping a merge, which varies the tokens of each epoch (BPE-dropout)",
        0.0,
        needs="tokens_per_step",
    )
    time_masks: int = _help(
        "bands of frames that are masked in each recording (SpecAugment, task speech)",
        0,
        needs="task=speech",
        at_least=0,
    )
    longest_time_mask: int = _help("most frames of such a band", 20, needs="task=speech", at_least=0)
    frequency_masks: int = _help(
        "bands of mel filters that are masked in each recording, likewise", 0, needs="task=speech", at_least=0
    )
    widest_frequency_mask: int = _help("most mel filters of such a band", 8, needs="task=speech", at_least=0)
    preprocessing_num_workers: int | None = _help("processes that tokenize", at_least=0)


# Fields that a tokenizer which exists already has decided.
FIELDS_OF_NEW_TOKENIZERS = ("tokenizer_model", "unicode_normalization", "separate_vocabularies", "target_lang_tags")


@dataclass
class ModelArguments:
    """The model that is trained from scratch or fine-tuned, and its tokenizer."""

    model_type: Literal["vanilla_transformer", "recurrent_seq2seq"] = _help(
        "kind of a new model: the Transformer, or LSTM or GRU layers as before it", "vanilla_transformer"
    )
    preset: str | None = _help(
        f"size of a new model: {', '.join(PRESETS)}; base if not given",
        excludes={"model_name_or_path": "the model has its size already"},
    )
    model_name_or_path: str | None = _help("model to fine-tune, instead of a new one")
    encoder_from: str | None = _help(
        "masked language model, or another model with an encoder, whose weights a new model's encoder begins with",
        excludes={"model_name_or_path preset tokenizer_name_or_path": "sizes and tokenizer are those of encoder_from"},
    )
    decoder_from: str | None = _help(
        "language model, or another model with a stack of the same kind, whose weights a new model's decoder begins "
        "with; attention to the source is new",
        excludes={"model_name_or_path preset tokenizer_name_or_path": "sizes and tokenizer are those of decoder_from"},
    )
    tokenizer_name_or_path: str | None = _help("tokenizer to use; if not given, the model's, or a new one is trained")
    tokenizer: Literal["new"] | None = _help(
        "new: the model that is fine-tuned gets a tokenizer that is trained on the text of this run (transfer to "
        "another language); pieces that its own tokenizer has, too, keep their vectors",
        excludes={"tokenizer_name_or_path": "remove one of them"},
        needs="model_name_or_path",
    )
    tokenizer_model: Literal["bpe", "wordpiece"] = _help("kind of a newly trained tokenizer", "bpe")
    unicode_normalization: Literal["NFC", "NFKC", "NFD", "NFKD", "none"] = _help(
        "Unicode normal form of texts in a newly trained tokenizer, in training and in use", "NFC"
    )
    separate_vocabularies: bool = _help("train one vocabulary for each language, not one for both", False)
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = _help(
        "attention backend; if not given, plain products (eager) on a CPU, where they are faster, else transformers'"
    )
    num_beams: int | None = _help(
        "beams of the final scores and of generation_config.json; of a new model 4, and as with the other options of "
        "the search, if not given, that of the model to fine-tune",
        at_least=1,
    )
    length_penalty: float | None = _help(
        "α of beam search: scores are divided by length^α, so more gives longer sentences; of a new model 1"
    )
    length_penalty_type: Literal["power", "gnmt"] | None = _help(
        "gnmt, as in the paper: scores are divided by ((5 + length) / 6)^α"
    )
    max_extra_tokens: int | None = _help(
        "maximum number of tokens of a translation beyond those of its source, 50 in the paper; of a new model, "
        "generation_max_length or max_target_length is the limit"
    )
    license: str | None = _help("licence of the model for its card, such as apache-2.0; never assumed")
    card_example: str | None = _help("source sentence of the usage example in the model card")
    project_url: str | None = _help("https address of the git repository of this package, for the model card")

    @property
    def begins_with(self) -> str | None:
        """A model whose weights this one begins with, as a whole or in a stack; None: all are new."""
        return self.model_name_or_path or self.encoder_from or self.decoder_from

    @property
    def tokenizer_from(self) -> str | None:
        """The folder or Hub id that the tokenizer is opened from; None: a new one is trained."""
        return None if self.tokenizer == "new" else self.tokenizer_name_or_path or self.begins_with

    @property
    def trains_tokenizer(self) -> bool:
        """Whether the run has a tokenizer of its own text."""
        return self.tokenizer_from is None

    @property
    def normal_form(self) -> Any:
        """`unicode_normalization` as the tokenizer takes it."""
        return None if self.unicode_normalization == "none" else self.unicode_normalization


@dataclass
class OwnTrainingArguments:
    """Arguments that `Seq2SeqTrainingArguments` lacks or has with another default, and those that most runs set."""

    # In transformers, too: what differs is the text, and for most the default.
    output_dir: str | None = _help(
        "folder that receives the model, its tokenizer, model card, curves, translations and checkpoints; "
        "trainer_output if not given"
    )
    num_train_epochs: float = _help("passes over the training text", 3.0, at_least=0)
    max_steps: int = _help("steps of the optimizer; 0 or less: num_train_epochs decides", -1)
    seed: int = _help("seed of weights, dropout and the order of the text", 42)
    bf16: bool = _help(
        "train with bfloat16 mixed precision: faster on GPUs and on some CPUs; a line says where it is not", False
    )
    eval_strategy: Literal["no", "steps", "epoch"] = _help(
        "when the validation text is scored: never, every eval_steps, or after each epoch", "no"
    )
    per_device_eval_batch_size: int = _help("sentences that each device scores at once", 64, at_least=1)
    eval_steps: float | None = _help(
        "steps between evaluations, or their share of all steps if less than 1; logging_steps if not given",
        needs="eval_strategy=steps",
    )
    eval_min_steps: int | None = _help(
        "steps between evaluations where an epoch has fewer, and between checkpoints of save_strategy epoch",
        excludes={"streaming": "the length of an epoch is not known", "eval_delay": "it counts epochs, or steps"},
        needs="eval_strategy=epoch",
        at_least=1,
    )
    eval_sample: int | None = _help(
        "pairs of each validation text that are scored during training, drawn once; all if not given. The scores at "
        "the end are always those of all",
        needs="eval_strategy",
        at_least=1,
    )
    eval_max_extra_tokens: int | None = _help(
        "max_extra_tokens of evaluations during training: what young models repeat is cut there, which changes the "
        "scores of translations that reach it, and no others. The scores at the end have max_extra_tokens",
        needs="eval_strategy",
        at_least=1,
    )
    save_steps: float = _help(
        "steps between checkpoints, or their share of all steps if less than 1", 500, needs="save_strategy=steps"
    )
    save_total_limit: int | None = _help("checkpoints to keep, at least the last and the best; all if not given")
    load_best_model_at_end: bool = _help(
        "publish the best checkpoint by metric_for_best_model, not the last",
        False,
        excludes={"average_last average_best": "one model is published"},
        needs="eval_strategy",
    )
    metric_for_best_model: str | None = _help(
        "score of the validation text that chooses the best checkpoint, such as bleu, chrf, exact_match or loss; "
        "loss if not given",
        needs="eval_strategy",
    )
    push_to_hub: bool = _help("publish on the Hugging Face Hub, at the end and with each checkpoint", False)
    hub_model_id: str | None = _help(
        "repository on the Hub, such as your-name/your-model; the name of output_dir in your account if not given"
    )
    resume_from_checkpoint: str | None = _help(
        "checkpoint to continue from, or last, with settings that have changed; if not given, the last one, with the "
        "same settings"
    )
    logging_nan_inf_filter: bool = _help("without effect: NaN and infinite losses stop the run", True)
    label_smoothing_factor: float = _help("an error: the model smooths labels itself; set label_smoothing", 0.0)
    learning_rate: float | None = _help(
        "peak of the learning rate; if not given, the paper's d_model^-0.5 * warmup_steps^-0.5", at_least=0
    )
    lr_scheduler_type: str = _help(
        "schedule of the learning rate: inverse_sqrt, linear, cosine, constant_with_warmup or another name of "
        "transformers' SchedulerType",
        "inverse_sqrt",
    )
    warmup_steps: float = _help("steps in which the learning rate rises to its peak", 4000, at_least=0)
    adam_beta2: float = _help("Adam's second decay rate", 0.98, at_least=0)
    adam_epsilon: float = _help("Adam's epsilon", 1e-9, at_least=0)
    max_grad_norm: float = _help("clip gradients to this norm; 0, as in the paper: no clipping", 0.0, at_least=0)
    predict_with_generate: bool = _help("score generated translations, not the loss alone", True)
    generation_num_beams: int | None = _help("beams of the scores during training", 1, at_least=1)
    optim: str = _help(
        "optimizer: adamw_torch_fused, adafactor or another name of transformers' OptimizerNames; with weight_decay "
        "0, AdamW is the paper's Adam",
        "adamw_torch_fused",
    )
    ddp_find_unused_parameters: bool | None = _help(
        "let several processes search for parameters without a gradient in each step; this model has none", False
    )
    # Of this package alone.
    bleu_tokenize: str | None = _help(
        "sacreBLEU's tokenizer; none for text that is tokenized already. That of the target language if not given"
    )
    adam_first_moment: Literal["float32", "bfloat16"] = _help(
        "type of Adam's first moment between steps; bfloat16 takes two bytes less for each weight", "float32"
    )
    tokens_per_step: int | None = _help(
        "tokens of an optimizer step, on the longer side, with padding, over all devices and accumulated batches; "
        "the paper has 25000. If not given: per_device_train_batch_size sentences, gradient_accumulation_steps times",
        excludes={OF_SENTENCES: "batches are filled by tokens"},
        at_least=1,
    )
    per_device_train_tokens: int = _help(
        "most tokens of a side that a device computes at once; more batches are accumulated to tokens_per_step",
        4096,
        needs="tokens_per_step",
        at_least=1,
    )
    curriculum_steps: int = _help(
        "steps in which batches are of the shortest rows at first, and of more and more (competence-based curriculum, "
        "arXiv 1903.09848); needs train_sampling_strategy=group_by_length. 0: all rows from the start",
        0,
        needs="train_sampling_strategy=group_by_length",
        at_least=0,
    )
    shuffle_buffer_size: int = _help(
        "sentence pairs of a stream that are in memory to be sorted and shuffled",
        100_000,
        needs="streaming",
        at_least=1,
    )
    r_drop: float = _help(
        "weight of R-Drop, which makes outputs under two dropout masks agree; about twice the work", 0.0, at_least=0
    )
    teacher: str | None = _help(
        "model of the same vocabulary whose distribution is learned at each position, beside the reference "
        "(word-level distillation); its tokenizer is used if no other is named",
        excludes={"r_drop": "set one of them"},
    )
    distillation_weight: float = _help(
        "weight of the teacher, 0 to 1; the reference has the rest", 0.5, needs="teacher"
    )
    distillation_temperature: float = _help(
        "both distributions are softmax(logits / temperature)", 1.0, needs="teacher"
    )
    head_gates: float = _help(
        "train a gate on each attention head, with this penalty for each open one, and remove the closed heads at the "
        "end; such as 0.01",
        0.0,
        at_least=0,
    )
    head_gates_learning_rate: float = _help(
        "peak of the learning rate of these gates", 0.05, needs="head_gates", at_least=0
    )
    average_last: int | None = _help(
        "publish the average of this many last checkpoints",
        excludes={"average_best moving_average": "one model is published"},
        at_least=1,
    )
    average_best: int | None = _help(
        "publish the average of this many best checkpoints by metric_for_best_model",
        excludes={"moving_average": "one model is published"},
        needs="eval_strategy",
        at_least=1,
    )
    moving_average: float | None = _help(
        "decay of a moving average of the weights to evaluate and publish, such as 0.999", at_least=0
    )
    early_stopping_patience: int | None = _help(
        "stop after this many evaluations without a better metric_for_best_model", needs="eval_strategy", at_least=1
    )
    threads: str | None = _help(
        "threads that compute on a CPU: a number, or auto, as many as cores are idle when the run begins, which is "
        "faster beside other programs; sums are rounded otherwise. All cores, or OMP_NUM_THREADS, if not given"
    )
    matmul: Literal["auto", "default", "onednn"] = _help(
        "library of float32 matrix products on a CPU; auto: torch's default, unless oneDNN is clearly faster on this "
        "CPU, as measured once, and does not round",
        "auto",
    )
