"""Tables of keys."""

import pytest
from checkpoints import WRITERS, write

from vanilla_transformer_hf.conversion import CONVERTERS, ConversionError
from vanilla_transformer_hf.conversion.key_table import (
    Rule,
    convert_tensors,
    empty_model,
    third,
    unchanged,
    written_out,
)


def test_choices_are_a_shells():
    assert list(written_out({"layers.{}.{fc1,fc2}.{weight,bias}": None})) == [
        "layers.{}.fc1.weight",
        "layers.{}.fc1.bias",
        "layers.{}.fc2.weight",
        "layers.{}.fc2.bias",
    ]
    assert list(written_out({"layers.{}.weight": None})) == ["layers.{}.weight"]


def test_several_names_of_one_of_ours():
    table = {"{encoder,decoder}.{norm,ln}.{weight,bias}": "model.{encoder,decoder}.{layer_norm}.{weight,bias}"}
    rows = {name: rule.target for name, (rule,) in written_out(table).items()}
    assert rows["decoder.ln.bias"] == rows["decoder.norm.bias"] == "model.decoder.layer_norm.bias"
    assert len(rows) == 8
    with pytest.raises(ValueError, match="zip"):
        written_out({"{encoder,decoder}.{norm,ln}.weight": "model.{encoder,decoder}.weight"})


def test_each_name_has_a_row_of_its_own():
    first = third(0)
    table = {"a.{0,1}.x": "b.{p,q}.y", "both.{w,b}": ["c.{w,b}", Rule("d.{w,b}", first)], "gone.{w,b}": None}
    assert written_out(table) == {
        "a.0.x": [Rule("b.p.y", unchanged)],
        "a.1.x": [Rule("b.q.y", unchanged)],
        "both.w": [Rule("c.w"), Rule("d.w", first)],
        "both.b": [Rule("c.b"), Rule("d.b", first)],
        "gone.w": [],
        "gone.b": [],
    }


@pytest.mark.parametrize("source", WRITERS)
def test_every_tensor_that_is_left_over_or_missing_is_named(source, tmp_path):
    found = CONVERTERS[source].read(write(source, tmp_path / "run"))
    model = empty_model(config := found.to_config())
    others = {f"{name}.extra": found.tensors[name] for name in found.tensors}
    with pytest.raises(ConversionError) as error:
        convert_tensors(found.keys(config), others, model)
    ours = model.state_dict().keys() - model.all_tied_weights_keys.keys()
    expected = {*(f"left over: {name}" for name in others), *(f"missing: {name}" for name in ours)}
    assert {line.strip() for line in str(error.value).splitlines()[1:]} == expected
