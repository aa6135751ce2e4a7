"""Code that travels with a model: ours was looked at once, here; all other code is looked at when it is published."""

import pytest

from vanilla_transformer_hf.model.saving.bundle import join_modules
from vanilla_transformer_hf.publishing.private_text import find_private_text
from vanilla_transformer_hf.publishing.upload_plan import _check_imports, is_saved_code, plan_upload


def test_the_code_that_is_saved_needs_no_search_when_it_is_published(tmp_path):
    files = join_modules(("modeling_vanilla_transformer", "pipeline_vanilla_transformer"))
    files = files | {
        f"other/{name}": text for name, text in join_modules(("attention.lsh", "positions.relative")).items()
    }
    for place, text in files.items():
        name = place.removeprefix("other/")
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert is_saved_code(name, text.encode()) and not is_saved_code("other.py", text.encode())
        assert _check_imports(tmp_path / name) == [] == find_private_text(name, text.encode())


def test_saved_code_that_was_edited_is_searched(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert plan_upload(tmp_path, "someone/model").files
    path = tmp_path / "layers_vanilla_transformer.py"
    path.write_text(path.read_text(encoding="utf-8") + "\nimport pandas\nPLACE = '/home/me/data'\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"imports pandas, which others may not have.*contains an absolute path"):
        plan_upload(tmp_path, "someone/model")
