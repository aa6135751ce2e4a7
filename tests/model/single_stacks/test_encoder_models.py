"""The encoder alone: against BERT's own classes elsewhere; here its weights, heads, losses and pipelines."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerEncoderModel,
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerTokenizer,
)


HEADS = (
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
# Switches that change which weights there are or how the stack computes.
VARIANTS = {
    "paper": {},
    "two_sizes": {
        **{"encoder_d_model": 24, "source_vocab_size": 120, "embedding_sharing": "decoder", "encoder_layers": 3},
        "decoder_attention_heads": 2,
    },
    "untied_rotary_rms_pre": {
        "embedding_sharing": "none",
        "position_encoding": "rotary",
        "norm_type": "rms_norm",
        "encoder_norm_position": "pre",
    },
    "segments": {"type_vocab_size": 2},
    "t5_bias_gated": {"position_encoding": "t5_bias", "feed_forward_type": "gated"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_it_begins_from_the_encoder_of_an_encoder_decoder_and_opens_again(options, tiny_model, batch, tmp_path):
    whole = tiny_model(**options)
    whole.save_pretrained(tmp_path / "whole")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = whole.model.encoder(**inputs)[0]
    for model_class in (VanillaTransformerEncoderModel, *HEADS):
        model, report = model_class.from_pretrained(tmp_path / "whole", output_loading_info=True)
        assert {name.split(".")[0] for name in report["missing_keys"]}.isdisjoint({"model", "encoder", "shared"})
        assert any(".decoder." in name for name in report["unexpected_keys"])
        with torch.no_grad():
            states = model.eval()(**inputs, output_hidden_states=True).hidden_states[-1]
        # The recorded state of the last layer stands before a final norm.
        if not whole.config.encoder_final_norm:
            torch.testing.assert_close(states, expected, rtol=0, atol=0)
        model.save_pretrained(tmp_path / "alone")
        first = (tmp_path / "alone" / "config.json").read_bytes(), (tmp_path / "alone/model.safetensors").read_bytes()
        again = model_class.from_pretrained(tmp_path / "alone")
        again.save_pretrained(tmp_path / "alone")
        assert first == (
            (tmp_path / "alone" / "config.json").read_bytes(),
            (tmp_path / "alone/model.safetensors").read_bytes(),
        )
        bare = AutoModel.from_pretrained(tmp_path / "alone").eval()
        assert type(bare) is VanillaTransformerEncoderModel
        with torch.no_grad():
            torch.testing.assert_close(bare(**inputs)[0], expected, rtol=0, atol=0)


def test_the_config_of_one_stack_means_that_stack_and_the_given_one_stays(tiny_config):
    config = tiny_config(encoder_layers=3, encoder_attention_heads=2, source_vocab_size=120, embedding_sharing="none")
    before = copy.deepcopy(config)
    model = VanillaTransformerForMaskedLM(config)
    found = model.config
    assert config == before and config.stacks == "encoder_decoder"
    assert (found.stacks, found.num_hidden_layers, found.num_attention_heads) == ("encoder", 3, 2)
    assert (found.vocab_size, found.source_vocab_size, found.decoder_layers) == (120, None, 3)
    assert model.model.config is found
    assert VanillaTransformerConfig.from_dict(found.to_dict()).stacks == "encoder"


@pytest.mark.parametrize(
    "kind, model_class, fields",
    [
        ("linformer", VanillaTransformerEncoderModel, {"encoder_attention_type": "linformer"}),
        (
            "recurrent",
            VanillaTransformerForCausalLM,
            {"decoder_attention_type": "recurrent", "decoder_position_encoding": "none"},
        ),
    ],
)
def test_a_kind_that_only_one_stack_can_have_is_saved_with_that_stack_alone(
    tiny_config, tmp_path, kind, model_class, fields
):
    model_class(tiny_config(**fields)).save_pretrained(tmp_path)
    stack = model_class.from_pretrained(tmp_path).get_decoder() if kind == "recurrent" else None
    stack = stack or model_class.from_pretrained(tmp_path).encoder
    assert type(stack.layers[0].self_attn).__name__.lower().startswith(kind)


def test_auto_classes_open_a_config_as_what_it_says(tiny_config):
    alone = tiny_config(is_encoder_decoder=False)
    assert type(AutoModel.from_config(alone)) is VanillaTransformerEncoderModel
    for auto, expected in zip(
        (AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification), HEADS
    ):
        assert type(auto.from_config(tiny_config())) is expected
    with pytest.raises(ValueError, match="is of a model with a decoder alone; open it with AutoModel"):
        AutoModelForMaskedLM.from_config(tiny_config(is_encoder_decoder=False, is_decoder=True))
    with pytest.raises(Exception, match="is_decoder=True with is_encoder_decoder=True"):
        tiny_config(is_decoder=True)


def test_an_auto_map_names_the_classes_of_the_stacks_that_are_there(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "whole")
    both = json.loads((tmp_path / "whole/config.json").read_text())
    assert {"is_decoder", "classifier_dropout"}.isdisjoint(both)
    VanillaTransformerForMaskedLM.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "alone")
    auto_map = json.loads((tmp_path / "alone/config.json").read_text())["auto_map"]
    files = {path.stem for path in (tmp_path / "alone").glob("*.py")}
    assert sorted(auto_map) == [
        *("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"),
        "AutoModelForTokenClassification",
    ]
    assert all(reference.split(".")[0] in files for reference in auto_map.values())
    assert "AutoModelForSeq2SeqLM" in both["auto_map"] and len(both["auto_map"]) == 3


def test_losses_are_those_of_torch(tiny_config, batch):
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    model = VanillaTransformerForMaskedLM(tiny_config(dropout=0.0, label_smoothing=0.2))
    model.train()
    found = model(**inputs, labels=labels)
    expected = F.cross_entropy(found.logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(found.loss, expected)
    lean = model(**inputs, labels=labels, return_logits=False)
    assert lean.logits is None
    torch.testing.assert_close(lean.loss, expected)
    tagger = VanillaTransformerForTokenClassification(tiny_config(num_labels=3)).eval()
    tags = (labels % 3).masked_fill(labels == -100, -100)
    found = tagger(**inputs, labels=tags)
    torch.testing.assert_close(found.loss, F.cross_entropy(found.logits.flatten(0, 1), tags.flatten()))
    classifier = VanillaTransformerForSequenceClassification(tiny_config(num_labels=3)).eval()
    found = classifier(**inputs, labels=torch.tensor([2, 0]))
    torch.testing.assert_close(found.loss, F.cross_entropy(found.logits, torch.tensor([2, 0])))
    for each, classes in ((tagger, tags), (classifier, torch.tensor([2, 0]))):
        for training in (True, False):
            found = each.train(training)(**inputs, labels=classes, return_logits=False)
            assert found.loss is not None and (found.logits is None) == training


def test_what_is_masked_does_not_reach_a_sequence_and_padding_changes_nothing(tiny_config, batch):
    model = VanillaTransformerForSequenceClassification(tiny_config()).eval()
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        together = model(ids, attention_mask=mask).logits[1]
        alone = model(ids[1:, :4]).logits[0]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_resizing_keeps_the_output_and_its_bias_in_step(tiny_config):
    for sharing in ("all", "decoder", "none"):
        model = VanillaTransformerForMaskedLM(tiny_config(embedding_sharing=sharing))
        model.resize_token_embeddings(103)
        assert model(torch.tensor([[102]])).logits.shape == (1, 1, 103)
        assert model.lm_head.bias.shape == (103,) and model.config.vocab_size == 103
        is_tied = model.lm_head.weight is model.get_input_embeddings().weight
        assert is_tied == (sharing != "none")


@pytest.fixture
def tokenizer():
    trained = VanillaTransformerTokenizer.train(["one two three four", "five six seven"], vocab_size=300)
    trained.add_special_tokens({"mask_token": "<mask>"})
    return trained


def test_the_trainer_and_the_pipelines_work(tokenizer, tiny_config, tmp_path):
    model = VanillaTransformerForSequenceClassification(
        tiny_config(vocab_size=len(tokenizer), id2label={0: "low", 1: "high"}, label2id={"low": 0, "high": 1})
    )
    texts = {"one two": 0, "one": 0, "two one": 0, "five six": 1, "six": 1, "seven six": 1}
    data = [{**tokenizer(text), "labels": label} for text, label in texts.items()]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=40, learning_rate=3e-3, use_cpu=True, report_to="none", seed=0
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert [result["label"] for result in classify(["one two", "six seven"])] == ["low", "high"]
    tag = pipeline(
        "token-classification", model=VanillaTransformerForTokenClassification(model.config), tokenizer=tokenizer
    )
    assert {entity["word"] for entity in tag("one")}
    folder = tmp_path / "masked"
    VanillaTransformerForMaskedLM(model.config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = pipeline("fill-mask", model=str(folder))("one <mask> three", top_k=3)
    assert len(found) == 3 and all(isinstance(one["token"], int) for one in found)
    features = pipeline("feature-extraction", model=str(folder))("one two")
    assert len(features[0][0]) == 32


def test_a_batch_in_which_nothing_is_masked_has_no_loss(tiny_config):
    model, ids = VanillaTransformerForMaskedLM(tiny_config()), torch.randint(3, 99, (2, 5))
    for count in (None, 0, torch.tensor(0)):
        assert model(ids, labels=torch.full_like(ids, -100), num_items_in_batch=count).loss == 0


@pytest.mark.parametrize("head", HEADS)
def test_the_trainer_sums_the_gradients_of_several_batches_to_that_of_one(head, tiny_config, tmp_path):
    torch.manual_seed(0)
    model = head(tiny_config(num_labels=3, label_smoothing=0.0, dropout=0.0))
    ids = torch.randint(4, 30, (4, 5))
    labels = [0, 1, 2, 1] if head is VanillaTransformerForSequenceClassification else (ids % 3).tolist()
    data = [{"input_ids": row, "labels": label} for row, label in zip(ids.tolist(), labels)]
    found = []
    for batches in (1, 2):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=4 // batches,
            gradient_accumulation_steps=batches,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
        )
        trained = copy.deepcopy(model)
        Trainer(model=trained, args=arguments, train_dataset=data).train()
        found.append(torch.cat([parameter.detach().flatten() for parameter in trained.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
