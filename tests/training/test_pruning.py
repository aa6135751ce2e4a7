"""Pruning: what is removed is what matters least, and the smaller model is the large one with zeros."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from counting_model import SOURCES, TARGETS
from host_search import same
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer_hf import Translator, VanillaTransformerConfig
from vanilla_transformer_hf.commands.main import main
from vanilla_transformer_hf.model.config.stacks import HEAD_FIELDS, heads_of_layers
from vanilla_transformer_hf.publishing.model_card import NOT_TRAINED
from vanilla_transformer_hf.publishing.upload_plan import plan_upload
from vanilla_transformer_hf.training.pruning import (
    attentions,
    choose_heads,
    choose_units,
    head_importance,
    keep_layers,
    prune,
    spaced,
    unit_norms,
)


# Models whose heads, maps and feed-forwards are laid out in different ways.
MODELS = {
    "paper": {"embedding_sharing": "none", "output_bias": True},
    "own_widths": {"d_k": 4, "d_v": 12, "attention_bias": True, "feed_forward_type": "gated", "encoder_d_model": 16}
    | {"embedding_sharing": "decoder", "position_encoding": "shaw", "max_relative_distance": 3},
    "shared": {
        "encoder_layers": 4,
        "encoder_layer_sets": 2,
        "layer_sharing": "cycle",
        "projection_sharing": "key_value",
    }
    | {"decoder_attention_sharing": True, "feed_forward_sharing": "all"},
}
every_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)


def with_zeros(model, heads, feed_forward):
    """The model whose removed heads and units give nothing, by zeros in the maps behind them alone."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for key, module in attentions(model).items():
            gone = set(range(4)) - set(heads[key])
            for head in gone:
                module.out_proj.weight[:, head * module.d_v : (head + 1) * module.d_v] = 0
        for maps in model.modules():
            if "fc2" in maps._modules:
                inner = [name for name in ("fc1", "fc3") if name in maps._modules]
                squares = sum((getattr(maps, n).weight ** 2).sum(1) + getattr(maps, n).bias ** 2 for n in inner)
                norms = squares + (maps.fc2.weight**2).sum(0)
                maps.fc2.weight[:, norms.argsort()[: round(feed_forward * len(norms))]] = 0
    return model


@every_model
@torch.no_grad()
def test_a_pruned_model_is_the_large_one_with_zeros_and_an_ordinary_folder(
    fields, tiny_model, batch, source, tmp_path
):
    model = tiny_model(**fields).double()
    heads = {key: [0, 1, 2, 3] for key in attentions(model)} | {("encoder", 1): [1, 3], ("decoder", 0): [2]}
    if ("cross", 0) in heads:
        heads["cross", 0] = [0, 1, 3]
    pruned = prune(model, heads, feed_forward=0.25)
    smaller, expected = pruned.model, with_zeros(model, heads, 0.25)(**batch).logits
    torch.testing.assert_close(smaller(**batch).logits, expected, atol=1e-10, rtol=0)
    assert smaller.num_parameters() == pruned.parameters[1] < model.num_parameters()
    same(smaller, source, num_beams=3, max_new_tokens=9)
    smaller.save_pretrained(tmp_path)
    opened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(opened(**batch).logits, expected, atol=1e-10, rtol=0)
    assert heads_of_layers(opened.config, "encoder") == [4, 2] and opened.config.encoder_ffn_dim == 48
    with torch.enable_grad():  # which is trained further
        opened.train()(**batch, labels=batch["decoder_input_ids"]).loss.backward()
    assert all(parameter.grad is not None for parameter in opened.parameters())


@every_model
def test_importance_is_the_mean_change_of_the_loss_by_a_factor_of_a_head(fields, tiny_model, batch):
    """Against finite differences in float64, sentence by sentence: the columns of W^O times 1 ± ε."""
    model = tiny_model(**fields).double()
    labels = torch.randint(3, 90, (2, 6)).masked_fill(batch["decoder_attention_mask"] == 0, -100)
    pairs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}
    found = head_importance(model.train(), [pairs])
    assert model.training and found.keys() == attentions(model).keys()
    model.eval()

    def losses():
        start = model.prepare_decoder_input_ids_from_labels(labels)
        with torch.no_grad():
            logits = model(pairs["input_ids"], pairs["attention_mask"], start).logits
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(dim=1)  # (B)

    step = 1e-5
    for key, head in (("encoder", 1), 2), (("decoder", 0), 0), (("decoder", 1), 3), (("cross", 1), 1):
        if key not in found:
            continue
        module = attentions(model)[key]
        columns = slice(head * module.d_v, (head + 1) * module.d_v)
        weight, results = module.out_proj.weight.data, []
        before = weight[:, columns].clone()
        for factor in (1 + step, 1 - step):
            weight[:, columns] = before * factor
            results.append(losses())
        weight[:, columns] = before
        expected = ((results[0] - results[1]) / (2 * step)).abs().mean()
        torch.testing.assert_close(found[key][head], expected, rtol=1e-4, atol=1e-9)


def test_the_least_important_heads_go_and_each_attention_keeps_its_best():
    importance = {
        ("encoder", 0): torch.tensor([3.0, 4.0, 0.0]),
        ("cross", 0): torch.tensor([0.3, 0.0, 0.4]),  # as important in its own layer
        ("decoder", 0): torch.tensor([0.0, 0.0, 0.0]),
    }
    kept = choose_heads(importance, 4 / 9)
    assert kept == {("encoder", 0): [0, 1], ("cross", 0): [0, 2], ("decoder", 0): [0]}
    assert choose_heads(importance, 0) == {key: [0, 1, 2] for key in importance}
    with pytest.raises(ValueError, match=r"heads=0.9: must be at least 0 and at most 0.6667"):
        choose_heads(importance, 0.9)
    assert choose_units(torch.tensor([3.0, 1.0, 2.0, 1.0]), 0.5) == [0, 2]
    with pytest.raises(ValueError, match="feed_forward=1"):
        choose_units(torch.ones(4), 1)


def test_unit_norms_count_all_weights_of_a_unit(tiny_model):
    layer = tiny_model(feed_forward_type="gated").model.decoder.layers[1]
    found = unit_norms(layer, ["fc1", "fc3"])[5]
    parts = [
        layer.fc1.weight[5],
        layer.fc3.weight[5],
        layer.fc1.bias[5:6],
        layer.fc3.bias[5:6],
        layer.fc2.weight[:, 5],
    ]
    torch.testing.assert_close(found.float(), torch.cat(parts).norm())


def test_configs_say_which_layers_have_fewer_heads_and_nothing_where_none_has(tiny_config):
    plain = tiny_config()
    assert not set(HEAD_FIELDS.values()) & json.loads(plain.to_json_string()).keys()
    assert heads_of_layers(plain, "cross") == [4, 4]
    pruned = tiny_config(cross_heads_by_layer=[4, 1])
    again = VanillaTransformerConfig.from_dict(json.loads(pruned.to_json_string()))
    assert heads_of_layers(again, "cross") == [4, 1] and heads_of_layers(again, "decoder") == [4, 4]
    for fields, message in (
        ({"encoder_heads_by_layer": [4]}, r"encoder_heads_by_layer=\[4\]: must be 2 numbers"),
        ({"cross_heads_by_layer": [0, 4]}, "from 1 to decoder_attention_heads=4"),
        ({"decoder_heads_by_layer": [2, 4], "position_encoding": "alibi"}, "decoder_position_encoding='alibi'"),
        ({"cross_heads_by_layer": [2, 4], "decoder_attention_sharing": True}, "must be equal with decoder_attention"),
    ):
        with pytest.raises(StrictDataclassError, match=message):
            tiny_config(**fields)


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "some.en").write_text("".join(f"{line}\n" for line in SOURCES))
    (tmp_path / "some.de").write_text("".join(f"{line}\n" for line in TARGETS))
    return ["--source", str(tmp_path / "some.en"), "--target", str(tmp_path / "some.de")]


def test_the_command_leaves_a_folder_that_translates_and_says_what_it_is(counting_folder, pairs, tmp_path, capsys):
    out = tmp_path / "pruned"
    main(["prune", counting_folder, "--heads", "0.25", "--feed_forward", "0.5", *pairs, "--output_dir", str(out)])
    told = capsys.readouterr().out
    assert "removed 3 of 12 attention heads (25%) and 64 of 128 feed-forward units (50%)" in told
    card = (out / "README.md").read_text()
    assert "Pruned: 3 of 12 attention heads" in card and "_heads_by_layer" in card and NOT_TRAINED in card
    config = json.loads((out / "config.json").read_text())
    assert config["encoder_ffn_dim"] == 32
    assert sum(sum(config.get(name, [4])) for name in HEAD_FIELDS.values()) == 9
    assert all(Translator.from_pretrained(out, device="cpu").translate(SOURCES[:9], num_beams=2))
    assert "model.safetensors" in [file.name for file in plan_upload(out).files]


@torch.no_grad()
def test_a_model_with_fewer_layers_computes_these_layers(tiny_model, batch, source, tmp_path):
    model = tiny_model(encoder_layers=4, decoder_layers=3, decoder_heads_by_layer=[4, 2, 3])
    smaller = keep_layers(model, encoder=3, decoder=2)
    assert (spaced(3, 4), spaced(2, 3), spaced(1, 4), spaced(4, 4)) == ([0, 2, 3], [0, 2], [0], [0, 1, 2, 3])
    reference = copy.deepcopy(model)
    for stack, layers in ((reference.model.encoder, [0, 2, 3]), (reference.model.decoder, [0, 2])):
        stack.layers = torch.nn.ModuleList(stack.layers[place] for place in layers)
    expected = reference(**batch, use_cache=False).logits
    torch.testing.assert_close(smaller(**batch).logits, expected, atol=1e-6, rtol=0)
    same(smaller, source, num_beams=3, max_new_tokens=9)
    smaller.save_pretrained(tmp_path)
    opened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(opened(**batch).logits, expected, atol=1e-6, rtol=0)
    assert (opened.config.encoder_layers, opened.config.decoder_layers) == (3, 2)
    assert opened.config.decoder_heads_by_layer == [4, 3]
    with pytest.raises(ValueError, match="decoder_layers=4: must be from 1 to the model's 3"):
        keep_layers(model, decoder=4)
    shared = tiny_model(encoder_layers=4, encoder_layer_sets=2)
    with pytest.raises(ValueError, match="encoder_layers=2: 4 layers share 2 sets of weights"):
        keep_layers(shared, encoder=2)
    assert keep_layers(shared, decoder=1).config.encoder_layer_sets == 2


def test_the_command_removes_layers(tiny_model, opened_translator, tmp_path, capsys):
    tokenizer, given = opened_translator.tokenizer, tmp_path / "given"
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(given)
    tokenizer.save_pretrained(given)
    main(["prune", str(given), "--decoder_layers", "1", "--output_dir", str(tmp_path / "pruned")])
    assert "removed 1 of 4 layers (25%): " in capsys.readouterr().out
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert config["decoder_layers"] == 1 and "decoder_layer_sets" not in config
    assert "Pruned: 1 of 4 layers (25%)" in (tmp_path / "pruned" / "README.md").read_text()


@torch.no_grad()
def test_a_model_without_its_least_important_heads_is_better_than_without_the_most_important(opened_translator):
    model, tokenizer = copy.deepcopy(opened_translator.model), opened_translator.tokenizer
    batch = tokenizer(SOURCES, text_target=TARGETS, padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    importance = head_importance(model, [batch])
    least = prune(model, choose_heads(importance, 0.5)).model
    most = prune(model, choose_heads({key: -value for key, value in importance.items()}, 0.5)).model
    losses = [float(one(**batch).loss) for one in (model, least, most)]
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "nothing is to be removed"),
        (["--heads", "0.5"], "heads=0.5: the importance of heads is measured on sentence pairs"),
        (["--feed_forward", "1"], "feed_forward=1.0: must be at least 0 and less than 1"),
    ],
)
def test_the_command_refuses_in_one_line(argv, message, counting_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["prune", counting_folder, *argv, "--output_dir", str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not (tmp_path / "out").exists()
