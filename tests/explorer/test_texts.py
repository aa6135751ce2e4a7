"""The page's texts in every language: the same keys and values in braces, and no view has a string of another one."""

import re

import pytest

from vanilla_transformer_hf.explorer.page import page_file, page_names


ENTRY = re.compile(r'^  "([\w.]+)":\s*`([^`]*)`,$', re.MULTILINE)
LANGUAGES = [name[len("texts_") : -len(".js")] for name in page_names() if name.startswith("texts_")]
TEXT = "three one five"


def texts_of(language):
    text = page_file(f"texts_{language}.js")
    found = ENTRY.findall(text)
    assert len(found) == text.count("`,") and len(dict(found)) == len(found)  # every entry, none twice
    return dict(found)


def test_there_are_two_languages_and_the_page_knows_them():
    assert {"en", "zh"} <= {*LANGUAGES}
    table = page_file("texts.js")
    for language in LANGUAGES:
        assert f'import {{ {language} }} from "./texts_{language}.js"' in table and f"  {language}: {{" in table


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_every_text_is_translated_with_its_values(language):
    english, other = texts_of("en"), texts_of(language)
    assert list(other) == list(english)
    for key, text in english.items():
        values = [set(re.findall(r"\{(\w+)\}", one)) for one in (text, other[key])]
        assert values[0] == values[1], f"{key}: {values}"
        assert other[key].strip(), key
        assert max(map(len, other[key].splitlines())) <= 100


def test_texts_that_the_page_names_exist():
    english = texts_of("en")
    code = "".join(str(page_file(name)) for name in page_names() if name.endswith((".js", ".html")))
    for key in re.findall(r'say\("([\w.]+)"', code) + re.findall(r'data-(?:text|label)"?[:=] ?"([\w.]+)"', code):
        assert key in english, key


# What is seen and read out, but for what a part says is of another language, or of none, and for what is typed.
SEEN = """() => {
  const found = [document.title];
  const walk = (one) => {
    if (one.nodeType === Node.TEXT_NODE) found.push(one.data);
    if (one.nodeType !== Node.ELEMENT_NODE || one.matches("script, style, noscript, textarea")) return;
    for (const name of ["aria-label", "title", "placeholder"]) found.push(one.getAttribute(name) ?? "");
    if (one.lang && one.lang !== document.documentElement.lang) return;
    for (const child of one.childNodes) walk(child);
  };
  walk(document.body);
  return found;
}"""
# Words of formulas and names, which are the same in all languages.
NAMES = """
softmax logit logits lens exp max Concat head MultiHead Sublayer LayerNorm FFN PE pos sin cos model ids relu ReLU
Attention Layer QK token soft addressing activation patching rollout arXiv top Top log power gnmt GNMT PNG SVG pad beam
tree all heads residual norms figure sinusoidal counting other Kendall English
"""
# Those of the sentences, whose tokens may be parts of them.
NUMBERS = "one two three four five six seven eight nine zero eins zwei drei vier fünf sechs sieben acht neun null"


def states():
    """A state for each view and picture, for what is changed, and for errors of the page."""
    found = [{"view": view, "num_beams": 3} for view in ("tour", "translate", "attention", "head", "walk", "analyse")]
    found += [{"view": "tour", "stop": stop} for stop in range(1, 12)]
    found += [{"view": "translate", **more} for more in ({"draws": 2, "top_k": 3}, {"prefix": "5", "num_beams": 2})]
    found += [{"view": "attention", "picture": name, "heads": "0,1"} for name in ("lines", "map", "grid")]
    found += [{"view": "head", "part": part} for part in ("encoder", "decoder", "cross")]
    found += [
        {"view": "walk", "box": box} for box in ("encoder.scaled", "decoder.0.fc2", "decoder.0.self_attn.stream")
    ]
    found += [{"view": "analyse", "analysis": name} for name in ("attributions", "ranks", "neurons")]
    found += [
        {"view": "analyse", "method": name, "steps": 16} for name in ("gradient", "integrated_gradients", "rollout")
    ]
    changed = {
        "view": "intervene",
        "off": "cross.0,encoder.0.1,decoder.0.0,decoder.0.1",
        "model_b": "other",
        "beams_b": 2,
    }
    patched = {"view": "intervene", "other": "three two five", "patch_map": "layers", "target": "five"}
    return [*found, changed, patched, {**patched, "patch_map": "heads", "patch_tensor": "cross.0.1"}]


@pytest.mark.browser
@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_view_has_a_string_of_the_other_language(language, open_page, show):
    page = open_page(language=language, text="five " * 200)
    assert page.get_attribute("html", "lang") == language
    for state in ({"text": "five " * 200}, *({"text": TEXT, **state} for state in states())):
        show(page, language=language, **state)
        for text in page.evaluate(SEEN):
            if language == "en":
                assert not re.search(r"[\u3000-\u9fff]", text), (state, text)
            else:
                own = re.sub(r"<[/\w]+>|[\w/-]*[_@][\w/-]*|\bW\^O\b", "", text)  # tokens, names of fields
                words = {*re.findall(r"[A-Za-zäöüß]{2,}", own)} - {*NAMES.split()}
                assert not [word for word in words if word not in NUMBERS], (state, text)


@pytest.mark.browser
def test_the_input_says_what_is_wrong_with_it(open_page, show):
    page = open_page(language="zh", text="five " * 200)
    assert re.search(r"最多读 \d+ 个词元；这个句子有 \d+ 个。请缩短它", page.inner_text("main .error"))
    show(page, text="five " * 200)
    assert re.search(r"reads at most \d+ tokens; this sentence has \d+\. Shorten it", page.inner_text("main .error"))
    assert page.locator("#bytes").count() == 0
    show(page, text="你好 five")
    assert "6 of these 8 tokens are single bytes" in page.inner_text("#bytes")
    show(page, text="five")
    assert page.locator("#bytes").count() == 0
