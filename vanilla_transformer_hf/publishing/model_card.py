"""
Model cards: one template, filled from what was measured or given. The card lists the metadata that are missing.

Training, averaging and conversion store the facts about a model in a file beside it. Its card is written from this
file, and again when it is published with more facts.
"""

import csv
import hashlib
import json
import math
import os
import re
import shlex
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from huggingface_hub import CardData, EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, Template
from transformers.utils import GENERATION_CONFIG_NAME

from ..common.files import open_output, read_regular_file, write_text
from ..common.opening import OwnConfig, read_config
from ..common.settings import LARGEST, parse_json, read_object
from ..evaluation.scores import METRICS, Scores
from ..model.config.generation import VanillaTransformerGenerationConfig
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from .weight_files import read_header, weight_paths


TEMPLATE = Path(__file__).with_name("model_card_template.md")
CARD_FILE = "README.md"
FACTS_FILE = "card_facts.json"
CURVES_FILE = "training_curves.png"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
EMISSIONS_FILE = "emissions.csv"
TRAINER_STATE_FILE = "trainer_state.json"

# Local paths and tokens are not useful to a reader of the card.
PRIVATE_SETTINGS = ("_source", "_target", "_text", "_from", "_dir", "_path", "_checkpoint", "_token", "corrections")
PRIVATE_PREFIX = ("hub_", "push_to_hub", "disable_tqdm", "teacher")

HOST_FIELDS = ("tie_word_embeddings", "is_encoder_decoder", "use_cache")


@dataclass(frozen=True)
class Task:
    """The task of a model for its card: the Hub's name, the Auto class, a description, and an example."""

    pipeline_tag: str
    auto_class: str
    does: str
    call: str = "{example}"
    usage: str = ""  # in the place of the usual example


SPEECH_USAGE = """from transformers import pipeline

reader = pipeline("automatic-speech-recognition", model={name})
print(reader("recording.wav"))  # needs ffmpeg; without it: {{"raw": samples, "sampling_rate": rate}}"""
IMAGE_USAGE = """from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained({name})
model = AutoModelForImageTextToText.from_pretrained({name})
pixels = processor(images=[Image.open("image.png")], return_tensors="pt")
print(processor.batch_decode(model.generate(**pixels), skip_special_tokens=True))"""

# Class of a model -> its task.
TRANSLATION = Task("translation", "AutoModelForSeq2SeqLM", "Translates {direction} with the encoder–decoder")
# Of the same class: trained to restore text, which is a beginning for other tasks.
DENOISING = Task(
    "feature-extraction", "AutoModelForSeq2SeqLM", "Restores text that has noise with the encoder–decoder"
)
TASKS = {
    "VanillaTransformerForMaskedLM": Task(
        "fill-mask",
        "AutoModelForMaskedLM",
        "Predicts masked tokens with the encoder",
        "{example} + ' ' + tokenizer.mask_token",
    ),
    "VanillaTransformerForSequenceClassification": Task(
        "text-classification", "AutoModelForSequenceClassification", "Classifies texts with the encoder"
    ),
    "VanillaTransformerForTokenClassification": Task(
        "token-classification",
        "AutoModelForTokenClassification",
        "Classifies words with the encoder",
        '{example}, aggregation_strategy="first"',
    ),
    "VanillaTransformerForCausalLM": Task(
        "text-generation", "AutoModelForCausalLM", "Continues texts with the decoder"
    ),
    "VanillaTransformerForSpeechSeq2Seq": Task(
        "automatic-speech-recognition",
        "AutoModelForSpeechSeq2Seq",
        "Writes what recordings say with the encoder–decoder",
        usage=SPEECH_USAGE,
    ),
    "VanillaTransformerForImageTextToText": Task(
        "image-to-text",
        "AutoModelForImageTextToText",
        "Writes what images show with the encoder–decoder",
        usage=IMAGE_USAGE,
    ),
    "VanillaTransformerEncoderModel": Task("feature-extraction", "AutoModel", "Represents texts with the encoder"),
    "VanillaTransformerDecoderModel": Task("feature-extraction", "AutoModel", "Represents texts with the decoder"),
}

# Fields in every table of an architecture.
SIZES = (
    *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads"),
    *("decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "dropout", "position_encoding"),
    *("encoder_norm_position", "decoder_norm_position", "embedding_sharing"),
)

# Fields of a generation config that do not affect decoding.
NO_DECODING = ("transformers_version", "output_attentions", "output_hidden_states", "use_cache")

# How the sentence about a pruned model ends, until it is trained.
NOT_TRAINED, TRAINED = "It has not been trained since then.", "It has been fine-tuned since then."

# The Hub's relations to a base model. It lists the same weights in another format under "quantized".
RELATIONS = ("finetune", "quantized", "merge", "adapter")


@dataclass
class ScoredText:
    """A held-out text by its role, such as "test", and the scores on it."""

    role: str
    scores: Scores


@dataclass
class SourceFile:
    """A source file with its checksum, so that readers can compare it with theirs."""

    name: str
    size: int
    sha256: str


@dataclass
class ConversionFacts:
    """The origin of converted weights, and the measurements; differences are the largest ones of logits in float32."""

    # `reopened` compares the model opened again with that before saving, `reference` with `reference_tokens` target
    # positions of the toolkit; `greedy`: identical outputs, and all.

    source: str
    command: str
    files: list[SourceFile]
    reopened: float
    reference: float | None = None
    reference_tokens: int = 0
    greedy: tuple[int, int] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.command.startswith("vanilla-transformer convert "):  # which readers may run
            raise ValueError(
                f"command={self.command[:60]!r}: expected one that begins with vanilla-transformer convert"
            )


@dataclass
class CardFacts:
    """Facts about a model beyond its files; None or empty: neither measured nor given."""

    # `datasets` and `base_model` are ids on the Hub; `further`: training fine-tuned an existing model. `settings` is
    # what differs from the defaults, as a recipe says it; `epochs` are 0 of a stream; `minutes` are None for a run
    # that was interrupted, since only its last part was timed; `co2` as the Hub has it, emissions in grams;
    # `project_url` is the address of a git repository from which a reader can install this package; `origin` are
    # sentences about the weights that training began with, `compression` about how the model was made smaller;
    # `quoted` are those of the folder that the model was made of, which may be somebody else's, and `made_of_folder`
    # whether all that is said of the training is; `mixture` about what an epoch has of several corpora; `before` are
    # the scores of the model that training began with; `task` is that of its recipe, unless its class says it;
    # `languages` are those of text without pairs; `measured` are scores of other tasks than translation, by held-out
    # text and name; `card_sha256` is that of the card that was written, which shows whether it was edited.

    name: str | None = None
    corpus: str | None = None
    pairs: int | None = None  # None for a stream, which is not counted
    datasets: list[str] = field(default_factory=list)
    source_lang: str | None = None
    target_lang: str | None = None
    languages: list[str] = field(default_factory=list)
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    base_model: str | None = None
    base_model_relation: str | None = None
    further: bool = False
    task: str | None = None
    example: str | None = None
    project_url: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    minutes: float | None = None
    steps: int = 0
    epochs: float = 0.0
    co2: dict[str, Any] | None = None
    average_of: list[str] = field(default_factory=list)
    origin: list[str] = field(default_factory=list)
    compression: list[str] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)
    made_of_folder: bool = False
    mixture: list[str] = field(default_factory=list)
    before: list[ScoredText] = field(default_factory=list)
    scored: list[ScoredText] = field(default_factory=list)
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    conversion: ConversionFacts | None = None
    card_sha256: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "CardFacts":
        """Read the file beside a model or, for a checkpoint, beside its run; empty if there is none."""
        path, state = folder / FACTS_FILE, folder / TRAINER_STATE_FILE
        is_checkpoint = state.is_file() and not path.is_file()
        path = folder.resolve().parent / FACTS_FILE if is_checkpoint else path
        try:
            known = {}
            if path.is_file():
                content = read_regular_file(path)
                if len(content) > LARGEST:
                    raise ValueError(f"more than {LARGEST:,} bytes")
                known = parse_json(content.decode(), path)
                if not isinstance(known, dict):
                    raise ValueError(f"expected a JSON object, got {type(known).__name__}")
            if is_checkpoint:
                path = state
                log = parse_json(read_regular_file(path).decode(), path)
                known |= {"name": None, "steps": log.get("global_step", 0), "epochs": log.get("epoch") or 0.0}
                if known.get("pairs", 1) is None:  # transformers counts a stream as one epoch
                    known["epochs"] = 0.0
            facts: CardFacts = _typed(known, cls, "facts")
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: damaged ({error}).") from error
        return facts

    def inherited(self) -> "CardFacts":
        """The facts for a model made of this one's folder, maybe somebody else's: sentences are quoted."""
        sentences = [*self.quoted, *self.origin, *self.compression]
        return replace(self, quoted=sentences, origin=[], compression=[], project_url=None, made_of_folder=True)

    def write(self, folder: Path):
        """Write the file beside a model."""
        write_text(folder / FACTS_FILE, json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n")


def _typed(value: Any, kind: Any, name: str) -> Any:
    """A value of JSON as the type of a field, or `ValueError`; unknown fields of an object are left out."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if type(None) in inner:
        return None if value is None else _typed(value, inner[0], name)
    if origin is list and isinstance(value, list):
        return [_typed(each, inner[0], name) for each in value]
    if origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(_typed(each, one, name) for each, one in zip(value, inner, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _typed(each, inner[1], f"{name}.{key}") for key, each in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        kinds = get_type_hints(kind)
        return kind(**{each: _typed(value[each], one, each) for each, one in kinds.items() if each in value})  # type: ignore[operator]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is float and is_number:
        return float(value)
    if origin is None and kind is not float and isinstance(value, kind) and (kind is not int or is_number):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}: expected {kind.__name__ if origin is None else kind}")


def as_text(value: Any) -> str:
    """A value, maybe of somebody else's folder, in a card as it is: no markup, no HTML, no link, one line."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*<>|~]|(?<!\w)_|_(?!\w)|\](?=[(:\[])|!(?=\[)|&(?=[#\w]))", r"\\\1", text)
    text = re.sub(r"(?i)\b(https?|ftp|mailto|xmpp)(?=:)|\bwww(?=\.)", r"\g<0>&#8203;", text)  # would be a link
    text = re.sub(r"(?<=[\w.+-])@(?=[\w-])", "&#8203;@", text)  # so would an address of e-mail
    text = re.sub(r"^(\d{1,9})(?=[.)](?: |$))", r"\1\\", text)  # would begin a list
    return re.sub(r"^(?=[#+-](?:[ #+-]|$))", r"\\", text)  # a heading, a list or a rule


def as_code(value: Any) -> str:
    """A value between backticks, or a line of a block of code."""
    return " ".join(str(value).split()).replace("`", "'")


def as_python(value: Any) -> str:
    """A text as a literal of Python."""
    return json.dumps(value, ensure_ascii=False)


def as_command(value: str) -> str:
    """A command line whose words are quoted for a shell, however they were written."""
    line = " ".join(value.split())
    try:
        return shlex.join(shlex.split(line))
    except ValueError:  # an open quotation
        return shlex.quote(line)


def read_emissions(folder: str | os.PathLike, further: bool, device: str | None) -> dict[str, Any] | None:
    """codecarbon's grams of CO₂ for a run and its continuations, as in the Hub's cards; None without a file."""
    path = Path(folder, EMISSIONS_FILE)
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    places = dict.fromkeys(row["country_name"] for row in rows if row.get("country_name"))
    return {
        "emissions": 1000 * sum(float(row["emissions"]) for row in rows),  # it writes kilograms
        "source": "codecarbon",
        "training_type": "fine-tuning" if further else "pre-training",
        **({"geographical_location": ", ".join(places)} if places else {}),
        "hardware_used": device,
    }


def public_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run without local paths, repositories and tokens."""
    return {
        name: {key: public_settings(each) for key, each in value.items()} if name == "corpora" else value
        for name, value in settings.items()
        if not name.endswith(PRIVATE_SETTINGS)
        and not name.startswith(PRIVATE_PREFIX)
        and not (isinstance(value, str) and (os.path.isabs(value) or value.startswith("~")))
    }


class ModelFolder:
    """The folder of a model, whose files are read once, for its card and for the plan of its upload."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    @cached_property
    def config(self) -> OwnConfig:
        return read_config(self.path)

    @cached_property
    def generation(self) -> Any:
        """How the model decodes; `ValueError` if that cannot be."""
        if (self.path / GENERATION_CONFIG_NAME).is_file():
            return VanillaTransformerGenerationConfig.from_pretrained(self.path)
        return VanillaTransformerGenerationConfig()

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        """The settings of the tokenizer, if there is one."""
        settings = self.path / TOKENIZER_CONFIG_FILE
        return read_object(settings, {}) if settings.is_file() else None

    @cached_property
    def parameters(self) -> int:
        headers = [read_header(path)[1] for path in weight_paths(self.path)]
        return sum(math.prod(tensor["shape"]) for header in headers for tensor in header.values())

    @property
    def decoding(self) -> str:
        """How `generate` decodes, in words."""
        stated = {
            name: value
            for name, value in self.generation.to_diff_dict().items()
            if not name.startswith("_") and not name.endswith("_token_id") and name not in NO_DECODING
        }
        beams = stated.pop("num_beams", None) or 1
        words = ["greedy search" if beams == 1 else f"{as_text(beams)} beams"]
        return ", ".join(words + [f"`{as_code(name)}` {as_text(value)}" for name, value in stated.items()])

    def languages(self, facts: CardFacts) -> list[str]:
        """Source and target language, as far as known, or those of the text of another task."""
        tokenizer = self.tokenizer or {}
        sides = (facts.source_lang or tokenizer.get("src_lang"), facts.target_lang or tokenizer.get("tgt_lang"))
        return facts.languages or [name for name in sides if isinstance(name, str)]


def _codes(languages: list[str]) -> list[str]:
    # The Hub accepts codes, not every name that a user may have chosen.
    return [name for name in dict.fromkeys(languages) if re.fullmatch(r"[a-z]{2,3}", name)]


def missing_facts(facts: CardFacts, languages: list[str]) -> list[str]:
    """The metadata that a card lacks, a sentence each."""
    rows = {
        "Licence: not chosen yet; the publisher chooses one that the training data allows.": facts.license,
        "Languages: no language codes were given.": _codes(languages),
        "Training data: not named.": facts.corpus or facts.datasets,
        "Scores: no held-out text was scored.": facts.scored or facts.measured,
        "Base model: the model that training began with was not named.": facts.base_model or not facts.further,
    }
    return [sentence for sentence, stated in rows.items() if not stated]


def _card_data(facts: CardFacts, config: OwnConfig, task: Task, title: str, languages: list[str]) -> ModelCardData:
    corpus = facts.corpus or ", ".join(facts.datasets) or "not stated"
    results = []
    for part in facts.scored:
        signatures = {"bleu": part.scores.bleu_signature, "chrf": part.scores.chrf_signature}
        for name, label in METRICS.items():
            results.append(
                EvalResult(
                    task_type="translation",
                    task_name=f"Translation {'-'.join(languages)}".strip(),
                    dataset_type=facts.datasets[0] if facts.datasets else corpus,
                    dataset_name=corpus,
                    dataset_split=part.role,
                    metric_type=name,
                    metric_name=label,
                    metric_value=round(getattr(part.scores, name), 2),
                    metric_args={"signature": signatures[name]} if name in signatures else None,
                )
            )
    relation = facts.base_model_relation or ("quantized" if facts.conversion else "finetune")
    more: dict[str, Any] = {"base_model_relation": relation} if facts.base_model else {}
    more |= {"co2_eq_emissions": facts.co2} if facts.co2 else {}
    return ModelCardData(
        language=_codes(languages) or None,
        license=facts.license,
        license_name=facts.license_name,
        license_link=facts.license_link,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=[config.model_type, *([facts.conversion.source] if facts.conversion else [])],
        datasets=facts.datasets or None,
        base_model=facts.base_model,
        metrics=list(METRICS) if facts.scored else None,
        model_name=title if facts.scored else None,
        eval_results=results or None,
        **more,
    )


def _architecture(config: OwnConfig) -> list[tuple[str, Any, Any]]:
    """Rows (field, value, that of the paper's base model): the sizes, and differences; of other models all fields."""
    names = [name for name in type(config).__annotations__ if name not in HOST_FIELDS and not name.endswith("_id")]
    if not isinstance(config, VanillaTransformerConfig):
        return [(name, getattr(config, name), None) for name in names]
    paper = VanillaTransformerConfig()
    rows = [(name, _value(config, name), _value(paper, name)) for name in names]
    stated = config.to_dict()  # where a field that takes its default from another is None or missing
    return [row for row in rows if row[0] in SIZES or (row[1] != row[2] and stated.get(row[0]) is not None)]


def _value(config: VanillaTransformerConfig, name: str) -> Any:
    """The value of a field, or its default from another field."""
    per_head = config.d_model // config.encoder_attention_heads
    value = getattr(config, name)
    return (
        {"d_k": per_head, "d_v": per_head, "source_vocab_size": config.vocab_size}.get(name)
        if value is None
        else value
    )


def make_card(facts: CardFacts, folder: ModelFolder, curves: bool | None = None) -> ModelCard:
    """The card of the model in a folder; `curves`: whether training curves are shown; None: if it has them."""
    task = TASKS.get((folder.config.architectures or [""])[0], TRANSLATION)
    if facts.task == "denoising":
        task = DENOISING
    languages = folder.languages(facts)
    name = facts.name or folder.path.resolve().name
    if problems := check_project_url(facts.project_url):
        raise ValueError(f"{folder.path}: {problems[0]}")
    if curves is None:
        curves = (folder.path / CURVES_FILE).is_file()
    title = name.split("/")[-1]
    data = _card_data(facts, folder.config, task, title, languages)
    named = {
        "facts": facts,
        "conversion": facts.conversion,
        "further": facts.further or facts.base_model is not None,
        "name": name,
        "title": title,
        "task": task,
        "translates": task is TRANSLATION,
        "denoises": task is DENOISING,
        "recurrent": not isinstance(folder.config, VanillaTransformerConfig),
        "does": task.does.format(direction=" to ".join(languages) if len(languages) == 2 else "text"),
        "call": task.call.format(example=as_python(facts.example or "...")),
        "parameters": folder.parameters,
        "decoding": folder.decoding,
        "max_new_tokens": folder.generation.max_new_tokens,
        "example": as_python(facts.example or "..."),
        "base_on_hub": facts.base_model is not None and is_repo_id(facts.base_model),
        "tokenizer": folder.tokenizer is not None,
        "architecture": _architecture(folder.config),
        "curves": CURVES_FILE if curves else None,
        "missing": missing_facts(facts, languages),
    }
    return ModelCard(_template().render({**data.to_dict(), **named, "card_data": data.to_yaml()}))


@cache
def _template() -> Template:
    """Compiled once for all cards: a training that publishes each checkpoint fills it many times."""
    environment = Environment(autoescape=False)  # of HTML; a card is Markdown
    environment.filters |= {"text": as_text, "code": as_code, "python": as_python, "command": as_command}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def write_card(facts: CardFacts, folder: str | os.PathLike):
    """Write the card of the model in a folder, and the file of its facts."""
    text = str(make_card(facts, ModelFolder(folder))).encode()
    # In this order, a process that is killed leaves no card that seems to be edited.
    Path(folder, CARD_FILE).unlink(missing_ok=True)
    replace(facts, card_sha256=hashlib.sha256(text).hexdigest()).write(Path(folder))
    with open_output(Path(folder, CARD_FILE)) as file:
        file.write(text)


def is_edited(folder: Path) -> bool:
    """Whether the card in a folder was edited or replaced since it was written."""
    card = folder / CARD_FILE
    return card.is_file() and hashlib.sha256(card.read_bytes()).hexdigest() != CardFacts.read(folder).card_sha256


def check_project_url(url: str | None) -> list[str]:
    """Problems with the address of the package, a sentence each."""
    if url is None or re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        return []
    return [f"project_url={url!r} is not an address to install from: expected https://host/owner/repository"]


def is_repo_id(name: str) -> bool:
    """Whether a repository of the Hub can have this id, "owner/name" or "name"."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def check_metadata(data: CardData) -> list[str]:
    """Metadata of a card that the Hub would reject, a sentence each; its list of licences is not at hand."""
    problems = []
    licence, languages = data.get("license"), data.get("language")
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", str(licence)):
        problems.append(f"license={licence!r}: must be an identifier of the Hub, such as cc-by-4.0, or other")
    if licence == "other" and not (data.get("license_name") and data.get("license_link")):
        problems.append("license='other': needs license_name and license_link")
    for language in filter(None, languages if isinstance(languages, list) else [languages]):
        if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", str(language)):
            problems.append(f"language={language!r}: must be a code of ISO 639, of two or three letters")
    for name in ("datasets", "base_model"):
        ids = data.get(name)
        for repo_id in filter(None, ids if isinstance(ids, list) else [ids]):
            if not is_repo_id(repo_id):
                problems.append(f"{name}={repo_id!r}: must be an id on the Hub, such as owner/name")
    relation = data.get("base_model_relation")
    if relation is not None and relation not in RELATIONS:
        problems.append(f"base_model_relation={relation!r}: must be one of {', '.join(RELATIONS)}")
    return problems
