"""Settings from strangers: a value of the wrong type or out of bounds is one line that names file, field and value."""

import json
import shutil

import pytest
from machine import within

from vanilla_transformer_hf import VanillaTransformerConfig
from vanilla_transformer_hf.common.model_settings import check_model_settings
from vanilla_transformer_hf.common.opening import open_model
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.publishing.weight_files import open_config


WRONG = {
    "generation_config.json": [
        *({"num_beams": value} for value in (1e9, 10**9, "4", 0, -1, True, [4], 4.0)),
        *({"max_new_tokens": value} for value in (1e12, 10**12, "9", -1, {})),
        *({"max_length": 10**12}, {"max_extra_tokens": "50"}, {"min_length": 10**9}, {"num_return_sequences": 10**6}),
        *({"length_penalty": value} for value in ("1", float("nan"), float("inf"), [1.0], True)),
        *({"temperature": "hot"}, {"top_k": 1e9}, {"no_repeat_ngram_size": "3"}, {"repetition_penalty": float("nan")}),
        *({"eos_token_id": "1"}, {"eos_token_id": 10**12}, {"pad_token_id": {}}, {"suppress_tokens": ["a"]}),
        *({"bad_words_ids": [[[[1]]]]}, {"early_stopping": "maybe"}, {"do_sample": "yes"}, {"length_penalty_type": 5}),
    ],
    "tokenizer_config.json": [
        *({"model_max_length": value} for value in ("52", -1, 0, float("nan"), [])),
        *({"pad_token": 5}, {"eos_token": "x" * 10**5}, {"src_lang": 5}, {"split_special_tokens": "yes"}),
        *({"additional_special_tokens": 5}, {"additional_special_tokens": [5]}, {"listed_pieces": "9"}),
        *({"auto_map": 5}, {"auto_map": {"AutoTokenizer": 5}}, {"auto_map": ["a.B", "a.C", "a.D"]}),
        *({"extra_special_tokens": {"x": 5}}, {"added_tokens_decoder": {"0": 5}}, {"separate_vocabularies": "no"}),
    ],
    "preprocessor_config.json": [
        *({"feature_size": value} for value in (10**7, 0, "80", 80.5)),
        *({"sampling_rate": 10**9}, {"n_fft": 10**9}, {"hop_length": 0}, {"chunk_length": 10**9}, {"window_ms": 1e9}),
        *(
            {"size": {"height": 10**6, "width": 10**6}},
            {"pad_size": 10**9},
            {"size": [224, 10**6]},
            {"hop_ms": float("nan")},
        ),
    ],
    "config.json": [
        *({"auto_map": value} for value in (5, ["a.B", None], {"AutoModel": 5}, {"AutoModel": {}}, {"AutoModel": []})),
        *({"attn_implementation": "somebody/kernel"}, {"_attn_implementation": {"encoder": "somebody/kernel@main:f"}}),
    ],
}
SECONDS = 2  # of processor time, for each of them
CASES = [(file, fields) for file, cases in WRONG.items() for fields in cases]


@pytest.mark.parametrize(("file", "fields"), CASES)
def test_a_wrong_value_is_named(file, fields, tmp_path):
    (tmp_path / file).write_text(json.dumps(fields))
    with within(SECONDS), pytest.raises(ValueError, match=rf"{file}: {next(iter(fields))}=.*: expected ") as refused:
        check_model_settings(tmp_path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("content", ["[]", "5", '"x"', "null"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_settings_that_are_no_object_are_named(file, content, counting_folder, tmp_path):
    folder = shutil.copytree(counting_folder, tmp_path / "model")
    (folder / file).write_text(content)
    with within(SECONDS), pytest.raises(OSError, match=rf"{file}: expected a JSON object, got") as refused:
        open_model(folder)
    assert "\n" not in str(refused.value)


def test_a_model_with_wrong_settings_is_not_opened(counting_folder, tmp_path):
    folder = shutil.copytree(counting_folder, tmp_path / "model")
    for file, fields in (CASES[0], CASES[-1]):
        before = (folder / file).read_text()
        (folder / file).write_text(json.dumps({**json.loads(before), **fields}))
        with pytest.raises(OSError, match=rf"{file}: {next(iter(fields))}="):
            open_model(folder)
        (folder / file).write_text(before)
    open_model(folder)


def test_sizes_of_pictures_have_each_form_of_transformers(tmp_path):
    for size in (224, [224, 224], {"height": 224, "width": 224}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": size}))
        check_model_settings(tmp_path)


def test_parts_of_a_processor_are_checked(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": {"feature_size": 10**7}}))
    with pytest.raises(
        ValueError, match=r"processor_config.json: feature_size=10000000: expected an integer from 1 to"
    ):
        check_model_settings(tmp_path)


OWN = "tokenization_vanilla_transformer.VanillaTransformerTokenizer"


@pytest.mark.parametrize(
    ("file", "auto_map"),
    [
        ("tokenizer_config.json", [OWN, None]),
        ("tokenizer_config.json", {"AutoTokenizer": OWN}),
        ("config.json", {"AutoTokenizer": [OWN, None]}),
        ("config.json", {"AutoTokenizer": [None, f"somebody/model--{OWN}"]}),
    ],
)
def test_classes_of_a_tokenizer_are_named_in_each_form_of_transformers(file, auto_map, counting_folder, tmp_path):
    folder = shutil.copytree(counting_folder, tmp_path / "model")
    content = json.loads((folder / file).read_text())
    whole = auto_map if isinstance(auto_map, list) else {**content.get("auto_map", {}), **auto_map}
    (folder / file).write_text(json.dumps({**content, "auto_map": whole}))
    model, tokenizer = open_model(folder)
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    open_model(tmp_path / "again")
    assert open_config(folder).d_model == model.config.d_model
    sent = {file.name for file in plan_upload(folder).files}
    assert {"tokenization_vanilla_transformer.py", "modeling_vanilla_transformer.py"} <= sent


@pytest.mark.parametrize(
    "fields", [{"dtype": "foo"}, {"id2label": 5}, {"num_labels": "x"}, {"architectures": 5}, {"auto_map": 5}]
)
def test_a_field_of_the_host_in_a_config_is_one_line(fields, counting_folder, tmp_path):
    folder = shutil.copytree(counting_folder, tmp_path / "model")
    config = VanillaTransformerConfig.from_pretrained(folder).to_dict()
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    with within(SECONDS):
        try:
            open_model(folder)
        except (OSError, ValueError) as error:
            assert "\n" not in str(error) and str(folder) in str(error)
