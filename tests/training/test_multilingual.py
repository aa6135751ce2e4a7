"""Models for several target languages: tags in the training text, in the tokenizer, and before what is translated."""

import pytest
from conftest import WORDS
from transformers import AutoTokenizer, pipeline

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.training.data.numbers_corpus import write_numbers_corpus


@pytest.fixture
def tagged(prepare, tmp_path):
    """Settings of a run in both directions."""
    pairs = [(f"<2de> {one}", other) for one, other in WORDS.items()]
    pairs += [(f"<2en> {other}", one) for one, other in WORDS.items()]
    for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"both.{side}").write_text("\n".join(lines * 2) + "\n", encoding="utf-8")
    files = {
        f"{role}_{side}": str(tmp_path / f"both.{side}")
        for role in ("train", "validation", "test")
        for side in ("source", "target")
    }
    return files | {"source_lang": None, "target_lang": None, "target_lang_tags": ["de", "en"]}


def test_tags_are_tokens_that_the_published_model_knows(prepare, tagged):
    job = prepare(**tagged, vocab_size=280)
    tokenizer = job.trainer.processing_class
    assert len(tokenizer) <= 280 == job.trainer.model.config.vocab_size or len(tokenizer) < 280
    job.trainer.save_model(prepare.out)
    for opened in (tokenizer, AutoTokenizer.from_pretrained(prepare.out)):
        tag = opened.convert_tokens_to_ids("<2de>")
        assert opened("<2de> one")["input_ids"] == opened("<2de>one")["input_ids"]
        assert opened("<2de> one")["input_ids"][0] == tag != opened.unk_token_id
        assert opened.init_kwargs["target_lang_tags"] == {"de": "<2de>", "en": "<2en>"}
    pieces = "".join(tokenizer.get_vocab())
    assert pieces.count("2de") == 1, "no piece was made of the tags"


def test_a_translator_puts_the_tag_before_each_part(prepare, tagged, monkeypatch):
    prepare(**tagged).trainer.save_model(prepare.out)
    translator = Translator.from_pretrained(prepare.out, device="cpu", matmul_backend="default")
    plain = translator.align("one two", "eins zwei")
    translator.use_target_lang("de")
    assert translator.source_prefix == "<2de>"
    tag = translator.tokenizer.convert_tokens_to_ids("<2de>")
    translator.max_source_length = 6
    (parts,) = translator.encoder()(["one. two. three. four. five. six."])
    assert len(parts) > 2
    for part in parts:
        assert part.ids[0] == tag and len(part.ids) <= 6 and "<2de>" not in part.text
        assert part.ids == translator.tokenizer(f"<2de> {part.text.strip()}")["input_ids"]
    translator.max_source_length = 60
    untagged = translator.align("<2de> one two", "eins zwei")
    translator.use_target_lang("en")
    other = translator.score("one", "eins")
    translator.use_target_lang("de")
    assert translator.score("one", "eins") != other, "the tag reaches the model"
    assert len(str(translator.align("one two", "eins zwei")).split()) <= len(str(plain).split()) + 2
    for link in str(translator.align("one two", "eins zwei")).split():
        assert int(link.split("-")[0]) < 2, "words are counted without the tag"
    assert untagged is not None
    with pytest.raises(ValueError, match=r"'fr' is not a target language of this model: expected one of de, en"):
        translator.use_target_lang("fr")


def test_the_pipeline_puts_the_tag_before_each_text(prepare, tagged):
    """Nobody has to type it: an argument, of the pipeline or of a call, or the name of the task says the language."""
    prepare(**tagged).trainer.save_model(prepare.out)
    typed = pipeline("translation", model=str(prepare.out))
    for made, call in (
        ({"task": "translation"}, {"target_lang_tag": "de"}),
        ({"task": "translation", "target_lang_tag": "de"}, {}),
        ({"task": "translation", "tgt_lang": "<2de>"}, {}),
        ({"task": "translation"}, {"tgt_lang": "de"}),
        ({"task": "translation_en_to_de"}, {}),
        ({"task": "translation_de_to_en"}, {"target_lang_tag": "de"}),
    ):
        translate = pipeline(**made, model=str(prepare.out))
        options = {"return_tensors": True, "max_new_tokens": 6, "num_beams": 2, "return_scores": True}
        assert _same(translate(["one two"], **options, **call), typed(["<2de> one two"], **options))
    assert not _same(typed(["one two"], **options), typed(["<2de> one two"], **options)), "the tag has an effect"
    with pytest.raises(ValueError, match="'fr' is not a target language of this model: expected one of de, en"):
        translate("one", target_lang_tag="fr")
    with pytest.raises(ValueError, match="'fr' is not a target language of this model: expected one of de, en"):
        translate("one", tgt_lang="fr")
    for wrong in ({"task": "translation", "target_lang_tag": "fr"}, {"task": "translation_en_to_fr"}):
        with pytest.raises(ValueError, match="'fr' is not a target language"):
            pipeline(**wrong, model=str(prepare.out))


def _same(first, second):
    (one,), (other,) = first, second
    return (
        one["score"] == other["score"]
        and one["translation_token_ids"].tolist() == other["translation_token_ids"].tolist()
    )


def test_a_model_without_tags_says_so(translator):
    with pytest.raises(ValueError, match=r"'de' is not a target language of this model: its tokenizer has no target"):
        translator.use_target_lang("de")


def test_tags_that_the_training_text_lacks_are_refused(prepare, tagged):
    with pytest.raises(ValueError, match=r"target_lang_tags=de en fr: no training source begins with <2fr>"):
        prepare(**tagged | {"target_lang_tags": ["de", "en", "fr"]})
    assert not (prepare.out / "checkpoints" / "tokenizer").exists()


@pytest.mark.slow
def test_the_numbers_corpus_in_both_directions(tmp_path):
    pytest.importorskip("num2words")
    sizes = write_numbers_corpus(tmp_path / "both", both_directions=True)
    assert sizes == {"valid": 1000, "test": 2000, "train": 57000}
    lines = [(tmp_path / "both" / f"valid.{side}").read_text("utf-8").splitlines() for side in ("source", "target")]
    pairs = set(zip(*lines, strict=True))
    for source, target in pairs:
        tag, text = source.split(" ", 1)
        other = {"<2de>": "<2en>", "<2en>": "<2de>"}[tag]
        assert (f"{other} {target}", text) in pairs
