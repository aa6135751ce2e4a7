"""JoeyNMT: checkpoints in its layout for every option. Real ones are in test_samples.py."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from samples import agree, files_on_the_card, named_by
from toy import EMBEDDING, OUTPUT, Side, Toy, names_of

from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer_hf.conversion import ConversionError, convert


NAMES = names_of(
    "layers",
    ("src_src_att", "trg_trg_att", "src_trg_att"),
    ("q_layer", "k_layer", "v_layer", "output_layer"),
    (("layer_norm", "feed_forward.layer_norm"), ("x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm")),
    ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3"),
    ("src_embed.lut", "trg_embed.lut"),
    "decoder.output_layer",
    ("layer_norm", ""),
)
SPECIALS = ["<unk>", "<pad>", "<s>", "</s>"]
WORDS = {"src": [*SPECIALS, "one", "two", "three", "four", "five"], "trg": [*SPECIALS, "eins", "zwei", "drei"]}
PRE, POST = {"layer_norm": "pre"}, {"layer_norm": "post"}
PRE_SIDE = Side(pre_norm=True, final_norm=True)

# Name -> options of the whole model, of the encoder, of the decoder; what they mean for encoder and decoder; and which
# matrices are one.
OPTIONS = {
    "pre": ({}, PRE, PRE, PRE_SIDE, PRE_SIDE, ()),
    "post": ({}, POST, POST, Side(), Side(), ()),
    "no_layer_norm_option": ({}, {}, {}, Side(pre_norm=True), Side(), ()),
    "layer_norm_of_the_encoder_only": ({}, PRE, {}, PRE_SIDE, Side(), ()),
    "mixed": ({}, POST, PRE, Side(), PRE_SIDE, ()),
    "tied": ({"tied_embeddings": True, "tied_softmax": True}, PRE, PRE, PRE_SIDE, PRE_SIDE, (EMBEDDING, OUTPUT)),
    "tied_embeddings": ({"tied_embeddings": True}, POST, POST, Side(), Side(), (EMBEDDING,)),
    "tied_softmax": ({"tied_softmax": True}, POST, POST, Side(), Side(), (OUTPUT,)),
    "unscaled": ({}, {"scale": False}, {"scale": False}, Side(pre_norm=True, scaled=False), Side(scaled=False), ()),
    "source_scaled": ({}, POST, {"scale": False, **POST}, Side(), Side(scaled=False), ()),
    "target_scaled": ({"tied_softmax": True}, {"scale": False, **POST}, POST, Side(scaled=False), Side(), (OUTPUT,)),
    "tied_takes_the_source's_scale": (
        {"tied_embeddings": True, "tied_softmax": True},
        POST,
        {"scale": False, **POST},
        Side(),
        Side(),
        (EMBEDDING, OUTPUT),
    ),
    "alpha": ({}, {"alpha": 1.2, **POST}, {"alpha": 0.6, **POST}, Side(alpha=1.2), Side(alpha=0.6), ()),
    "xavier_normal": (
        {"initializer": "xavier_normal"},
        {"num_layers": 3, "alpha": 7.0, **POST},
        POST,
        Side(layers=3, alpha=0.81 * (3**4 * 2) ** (1 / 16)),
        Side(alpha=(3 * 2) ** (1 / 4)),
        (),
    ),
    "activations": (
        {},
        {"activation": "gelu", **PRE},
        {"activation": "swish", **PRE},
        replace(PRE_SIDE, activation="gelu"),
        replace(PRE_SIDE, activation="swish"),
        (),
    ),
    "unequal": (
        {},
        {"num_layers": 3, "num_heads": 2, "ff_size": 20, **POST},
        {"num_layers": 1, "num_heads": 8, "ff_size": 40, **POST},
        Side(layers=3, heads=2, ffn=20),
        Side(layers=1, heads=8, ffn=40),
        (),
    ),
}


def stack_options(given):
    given = {"type": "transformer", "hidden_size": 16, "ff_size": 24, "num_layers": 2, "num_heads": 4, **given}
    return {**given, "embeddings": {"embedding_dim": 16, "scale": given.pop("scale", True)}}


def write(folder, toy, model, data=None, testing=None, words=None):
    """A folder as JoeyNMT leaves it."""
    folder.mkdir(exist_ok=True)
    tensors = {**toy.tensors, "encoder.pe.pe": torch.zeros(1, 9, 16), "decoder.pe.pe": torch.zeros(1, 9, 16)}
    torch.save({"model_state": tensors, "optimizer_state": {}, "steps": 7}, folder / "best.ckpt")
    for side, tokens in (words or WORDS).items():
        (folder / f"{side}_vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    sides = {"src": {"lang": "en", "level": "word"}, "trg": {"lang": "de", "level": "word"}}
    config = {"name": "toy", "joeynmt_version": "2.3.0", "data": {**sides, **(data or {})}, "model": model}
    # Of JSON, which is YAML too: safe_dump makes anchors of what stands there twice.
    (folder / "config.yaml").write_text(json.dumps({**config, "testing": testing or {}}), encoding="utf-8")
    return folder


def make(name="post"):
    """A toy of one of OPTIONS, the section `model` of its config, and its vocabularies."""
    whole, encoder, decoder, encoder_side, decoder_side, same = OPTIONS[name]
    words = dict.fromkeys(WORDS, WORDS["src"]) if EMBEDDING in same else WORDS
    sizes = (len(words["src"]), len(words["trg"]))
    toy = Toy(NAMES, encoder_side, decoder_side, sizes=sizes, eps=1e-6, same=same)
    return toy, {**whole, "encoder": stack_options(encoder), "decoder": stack_options(decoder)}, words


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, tmp_path):
    toy, model, words = make(name)
    folder = write(tmp_path / "run", toy, model, words=words)
    done = agree("joeynmt", folder, tmp_path, toy.logits, toy.sizes)
    assert done.config.embedding_sharing == toy.sharing


def test_all_that_cannot_be_expressed_is_listed_together(tmp_path):
    toy, model, _ = make()
    model["encoder"] |= {"type": "recurrent", "activation": "tanh"}
    model["decoder"] |= {"layer_norm": "sandwich"}
    data = {"src": {"level": "syllable"}, "special_symbols": {"sep_token": "<sep>"}}
    assert named_by("joeynmt", write(tmp_path / "run", toy, model, data=data), tmp_path) == [
        *("model.encoder.type", "model.encoder.activation", "model.decoder.layer_norm"),
        *("data.special_symbols.sep_token", "data.src.level"),
    ]


# ------------------------------------------------------------------------------------------------ tokenizer and search


def tokenizer_of(folder, tmp_path):
    convert("joeynmt", folder, tmp_path / "out")
    return VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")


def test_words_with_normalisation(tmp_path):
    toy, model, _ = make()
    side = {"lang": "en", "level": "word", "lowercase": True, "normalize": True}
    words = {"src": [*SPECIALS, "it's", "one", "two?", "x"], "trg": WORDS["trg"]}
    toy = replace(toy, sizes=(len(words["src"]), len(words["trg"])))
    tokenizer = tokenizer_of(write(tmp_path / "run", toy, model, data={"src": side}, words=words), tmp_path)
    # NFKC, straight quotes, one space, none before punctuation, lower case: helpers.py.
    assert tokenizer("It’s  one \u3000 TWO ? ｘ y ")["input_ids"] == [4, 5, 6, 7, 0, 3]
    assert tokenizer(text_target="eins drei")["input_ids"] == [4, 6, 3]
    assert tokenizer.decode([4, 6, 3], skip_special_tokens=True) == "eins drei"


def test_characters(tmp_path):
    toy, model, _ = make()
    words = {"src": [*SPECIALS, "▁", "a", "é", "x"], "trg": [*SPECIALS, "b", "▁", "ß"]}
    toy = replace(toy, sizes=(8, 7))
    data = {"src": {"lang": "en", "level": "char"}, "trg": {"lang": "de", "level": "char"}}
    tokenizer = tokenizer_of(write(tmp_path / "run", toy, model, data=data, words=words), tmp_path)
    assert tokenizer("a é\nxz")["input_ids"] == [5, 4, 6, 0, 7, 0, 3]
    assert tokenizer.decode([4, 6, 5, 4, 3], skip_special_tokens=True) == "bß b"


def test_subword_nmt_undoes_merges_that_lead_to_no_piece(tmp_path):
    toy, model, _ = make()
    tokens = [*SPECIALS, "l@@", "o@@", "w", "lo@@", "low", "e@@", "r", "n@@", "s@@", "t", "a@@", "k"]
    words = dict.fromkeys(WORDS, tokens)
    toy = replace(toy, sizes=(len(tokens), len(tokens)))
    codes = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nn e\ns t</w>\n"
    settings = {"codes": "/elsewhere/bpe.codes", "pretokenizer": "none"}
    side = {"lang": "en", "level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": settings}
    folder = write(tmp_path / "run", toy, model, data={"src": side, "trg": side}, words=words)
    (folder / "bpe.codes").write_text(codes, encoding="utf-8")
    tokenizer = tokenizer_of(folder, tmp_path)
    pieces = ["low", "e@@", "r", "n@@", "e@@", "w", "s@@", "t", "lo@@", "k"]  # "er", "ne@@" and "st" are no pieces
    assert tokenizer("low er new st lok")["input_ids"] == [*map(tokens.index, pieces), 3]
    assert tokenizer.decode([tokens.index("lo@@"), tokens.index("k"), tokens.index("low")]) == "lok low"
    assert files_on_the_card(tmp_path / "out") == {path.name for path in folder.iterdir()}


def best_cut(text, scores):
    """The cut of a text into pieces whose scores have the largest sum."""
    best = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = [(best[start], text[start:end]) for start in range(end) if text[start:end] in scores]
        best.append(max((score + scores[piece], [*cut, piece]) for (score, cut), piece in ways))
    return best[-1][1]


@pytest.mark.parametrize("dropped", [0, 3])
def test_sentencepiece(dropped, tmp_path):
    """JoeyNMT tells the model which pieces its vocabulary has; here it lacks the longest."""
    spm = pytest.importorskip("sentencepiece")
    texts = tmp_path / "texts"
    texts.write_text("one two three four five six seven eight nine ten\n" * 20, encoding="utf-8")
    prefix = str(tmp_path / "sp")
    spm.SentencePieceTrainer.train(input=str(texts), model_prefix=prefix, vocab_size=23, minloglevel=2)
    model_of_pieces = spm.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = [model_of_pieces.id_to_piece(index) for index in range(model_of_pieces.get_piece_size())]
    longest = sorted((piece for piece in pieces if piece not in SPECIALS), key=len, reverse=True)[:dropped]
    assert all(len(piece) > 1 for piece in longest)
    tokens = [*SPECIALS, *(piece for piece in pieces if piece not in [*SPECIALS, *longest])]
    kept = {
        piece: model_of_pieces.get_score(index)
        for index, piece in enumerate(pieces)
        if piece not in SPECIALS and (piece in tokens or len(piece) == 1)
    }
    toy, model, _ = make()
    toy = replace(toy, sizes=(len(tokens), len(tokens)))
    side = {"lang": "en", "level": "bpe", "tokenizer_cfg": {"model_file": "somewhere/sp.model"}}
    folder = write(tmp_path / "run", toy, model, data={"src": side, "trg": side}, words=dict.fromkeys(WORDS, tokens))
    (folder / "sp.model").write_bytes((tmp_path / "sp.model").read_bytes())
    tokenizer = tokenizer_of(folder, tmp_path)
    for text in ("one seven", "  three   nine ", "fourteen"):
        expected = best_cut("▁" + "▁".join(text.split()), kept)
        assert dropped or expected == model_of_pieces.encode(text, out_type=str)
        assert tokenizer(text)["input_ids"] == [*map(tokens.index, expected), 3]


def test_own_special_symbols(tmp_path):
    toy, model, _ = make()
    symbols = {"unk_token": "[U]", "pad_token": "[P]", "bos_token": "[B]", "eos_token": "[E]", "lang_tags": ["<de>"]}
    names = ["[U]", "[P]", "[B]", "[E]", "<de>"]
    words = {"src": [*names, "one"], "trg": ["eins", "zwei"]}  # what a file lacks is put before it
    toy = replace(toy, sizes=(6, 7))
    tokenizer = tokenizer_of(write(tmp_path / "run", toy, model, {"special_symbols": symbols}, words=words), tmp_path)
    assert tokenizer("one two")["input_ids"] == [5, 0, 3]
    assert tokenizer(text_target="<de> zwei")["input_ids"] == [4, 6, 3]
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings["suppress_tokens"] == [2, 4]


@pytest.mark.parametrize(
    ("testing", "settings", "notes"),
    [
        ({}, {"num_beams": 1, "min_new_tokens": 1, "suppress_tokens": [2]}, ["max_output_length"]),
        ({"max_output_length": 40, "generate_unk": False}, {"max_new_tokens": 40, "suppress_tokens": [2, 0]}, []),
        (
            {"beam_size": 5, "beam_alpha": 0.6, "max_output_length": 9, "min_output_length": 2},
            {
                **{"num_beams": 5, "length_penalty": 0.6, "length_penalty_type": "gnmt", "min_new_tokens": 2},
                "suppress_tokens": [2, 1],
            },
            ["JoeyNMT stops"],
        ),
        ({"beam_size": 4, "max_output_length": 9}, {"length_penalty": 0.0}, ["JoeyNMT stops"]),
        ({"beam_size": 4, "alpha": 2, "max_output_length": 9}, {"length_penalty": 2.0}, ["JoeyNMT stops"]),
        ({"repetition_penalty": 1.2, "max_output_length": 9}, {}, ["repetition_penalty"]),
    ],
)
def test_settings_of_the_search(testing, settings, notes, tmp_path):
    toy, model, _ = make()
    done = convert("joeynmt", write(tmp_path / "run", toy, model, testing=testing), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings.items() <= written.items()
    assert len(done.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(done.notes, notes, strict=True))


@pytest.mark.parametrize("level", ["word", "char", "bpe"])
@pytest.mark.parametrize("normalize", [False, True])
def test_moses_is_built_in(level, normalize, tmp_path):
    sacremoses = pytest.importorskip("sacremoses")
    toy, model, _ = make()
    side = {"lang": "en", "level": level, "normalize": normalize, "lowercase": True, "tokenizer_type": "subword-nmt"}
    side["tokenizer_cfg"] = {"pretokenizer": "moses", "codes": "codes"}
    words = [*SPECIALS, "one", ",", "it", "&apos;s", "o@@"]
    folder = write(tmp_path / "run", toy, model, data={"src": side, "trg": side})
    (folder / "codes").write_text("#version: 0.2\no n\non e</w>\ni t</w>\n&apos; s</w>\n")
    for name in ("src", "trg"):
        (folder / f"{name}_vocab.txt").write_text("\n".join(words[: len(WORDS[name])]) + "\n", encoding="utf-8")
    done = convert("joeynmt", folder, tmp_path / "out")
    assert any("cut as by the Moses tokenizer" in note for note in done.notes)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    tokenize = sacremoses.MosesTokenizer(lang="en").tokenize
    backend = tokenizer.source_backend_tokenizer or tokenizer.backend_tokenizer
    for text in ("One, it's (one) [e-mail] & 3.50.", "It's Mr. One's.", "one "):
        assert backend.normalizer.normalize_str(text).replace("▁", " ") == tokenize(text, return_str=True).lower()
    if level == "word":
        assert tokenizer("One, it's").input_ids == [4, 5, 6, 7, 3]
        assert tokenizer.decode([4, 5, 6], skip_special_tokens=True) == "one , it"


def test_moses_may_be_given_with_the_command(tmp_path):
    toy, model, _ = make()
    folder = write(tmp_path / "run", toy, model)
    name = "data.src.tokenizer_cfg.pretokenizer"
    done = convert("joeynmt", folder, tmp_path / "out", options={name: "moses", "data.src.lang": "en"})
    assert any(note.startswith(name) for note in done.notes)
    with pytest.raises(ConversionError, match=r"'model\.encoder\.num_head' is not an option of joeynmt"):
        convert("joeynmt", folder, tmp_path / "other", options={"model.encoder.num_head": 2})


BPE = {"level": "bpe", "tokenizer_cfg": {"model_file": "somewhere/sp.model"}}


@pytest.mark.parametrize(
    ("model", "side", "message"),
    [
        ({"tied_softmax": "no"}, {}, r"model\.tied_softmax: 'no' \(a value such as False is needed\)"),
        ({"encoder": None}, {}, r"model\.encoder\.type: recurrent \(supported: transformer\)"),
        ({}, BPE, r"SentencePiece model of data\.src"),
        ({}, {"level": "bpe", "tokenizer_type": "my_splitter"}, r"data\.src\.tokenizer_type: 'my_splitter' \(suppor"),
        ({}, {"level": "bpe", "bpe_type": ["x"]}, r"data\.src\.tokenizer_type: \['x'\]"),
        ({}, {"tokenizer_cfg": {"pretokenizer": "nltk"}}, r"data\.src\.tokenizer_cfg\.pretokenizer: 'nltk'"),
    ],
)
def test_what_cannot_be_read_is_named(model, side, message, tmp_path):
    toy, options, _ = make()
    folder = write(tmp_path / "run", toy, options | model, data={"src": {"lang": "en", "level": "word"} | side})
    with pytest.raises(ConversionError, match=message):
        convert("joeynmt", folder, tmp_path / "out")


@pytest.mark.parametrize("beams", [0, 1, -1])
def test_fewer_beams_than_two_are_greedy_search(beams, tmp_path):
    toy, model, _ = make()
    testing = {"beam_size": beams, "max_output_length": 9, "beam_alpha": 1.0}
    convert("joeynmt", write(tmp_path / "run", toy, model, testing=testing), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written.get("num_beams", 1) == 1 and "length_penalty_type" not in written
    VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "out").generate(torch.tensor([[4, 3]]))


def test_a_config_of_the_first_version(tmp_path):
    """A config that 1.5 writes: texts for the languages, one level for both sides, pre-norm, with final norms."""
    toy, model, _ = make("pre")
    for stack in ("encoder", "decoder"):
        del model[stack]["layer_norm"]
        model[stack]["embeddings"] = {"embedding_dim": 16, "scale": True, "freeze": False}
    folder = write(tmp_path / "run", toy, model | {"initializer": "xavier"})
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["data"] = {"src": "de", "trg": "en", "level": "word", "lowercase": True, "src_voc_limit": 100}
    settings["testing"] = {"beam_size": 5, "alpha": 0.7}
    settings["training"] = {"max_output_length": 31, "label_smoothing": 0.1}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    done = agree("joeynmt", folder, tmp_path, toy.logits, toy.sizes)
    assert done.config.label_smoothing == 0.1
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("One TWO").input_ids == [4, 5, 3] and (tokenizer.src_lang, tokenizer.tgt_lang) == ("de", "en")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {"num_beams": 5, "length_penalty": 0.7, "length_penalty_type": "gnmt", "max_new_tokens": 31}
    assert expected.items() <= written.items() and "suppress_tokens" not in written


@pytest.mark.parametrize(
    ("model", "data", "testing", "names"),
    [
        ({"num_layers": "two", "alpha": True}, {}, {}, ["model.encoder.num_layers", "model.encoder.alpha"]),
        ({}, {"src": {"level": "bpe", "tokenizer_cfg": "x"}}, {}, ["data.src.tokenizer_cfg"]),
        ({}, {"special_symbols": []}, {}, []),
        ({}, {"trg": ["en"]}, {"beam_size": "4"}, ["data.trg", "testing.beam_size"]),
    ],
)
def test_values_of_another_type_are_named(model, data, testing, names, tmp_path):
    toy, options, _ = make()
    options["encoder"] |= model
    folder = write(tmp_path / "run", toy, options, data=data, testing=testing)
    if not names:  # an empty section is no section
        convert("joeynmt", folder, tmp_path / "out")
        return
    assert named_by("joeynmt", folder, tmp_path) == names
