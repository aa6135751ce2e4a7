"""Tables of keys."""

from vanilla_transformer_hf.conversion.key_table import Rule, spelled_out, third, unchanged, written_out


def test_choices_are_a_shells():
    assert spelled_out("layers.{}.{fc1,fc2}.{weight,bias}") == [
        "layers.{}.fc1.weight",
        "layers.{}.fc1.bias",
        "layers.{}.fc2.weight",
        "layers.{}.fc2.bias",
    ]
    assert spelled_out("layers.{}.weight") == ["layers.{}.weight"]


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
