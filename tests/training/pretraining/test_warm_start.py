"""An encoder–decoder from a masked and a causal language model: weights, config, tokenizer, card, and refusals."""

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertLMHeadModel,
    BertModel,
    BertTokenizer,
    EncoderDecoderModel,
)

from vanilla_transformer_hf import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerTokenizer,
)
from vanilla_transformer_hf.training.arguments import ModelArguments
from vanilla_transformer_hf.training.pretraining.denoising import check_tokenizer
from vanilla_transformer_hf.training.pretraining.warm_start import (
    begin_with,
    fields_of_origins,
    find_origins,
    open_common_tokenizer,
)
from vanilla_transformer_hf.training.run import run_job
from vanilla_transformer_hf.training.tasks.one_stack import CausalLM, MaskedLM


SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_norm_position": "pre"}


@pytest.fixture
def folders(tmp_path):
    """Folders of a masked and of a causal language model with one vocabulary."""
    tokenizer = VanillaTransformerTokenizer.train(["one two three", "eins zwei drei"], vocab_size=290)
    MaskedLM.prepare(tokenizer)
    made = []
    for name, kind, more in (
        ("masked", VanillaTransformerForMaskedLM, {}),
        ("causal", VanillaTransformerForCausalLM, {"output_bias": True, "decoder_norm_position": "pre"}),
    ):
        if name == "causal":
            CausalLM.prepare(tokenizer)
        model = kind(VanillaTransformerConfig(vocab_size=len(tokenizer), **{**SIZES, **more}))
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        made.append(model)
    return str(tmp_path / "masked"), str(tmp_path / "causal"), *made


def new_model(stated=None, **origins):
    origins = find_origins(ModelArguments(**origins))
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(**fields_of_origins(origins, stated or {}))
    )
    drawn = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return model, drawn, begin_with(origins, model)


def test_each_stack_has_the_weights_of_its_model_and_the_rest_is_new(folders):
    encoder, decoder, masked, causal = folders
    model, drawn, told = new_model(encoder_from=encoder, decoder_from=decoder)
    state, theirs = model.state_dict(), {**masked.state_dict(), **causal.state_dict()}
    theirs |= {name: tensor for name, tensor in masked.state_dict().items() if name.startswith("model.encoder.")}
    new = {name for name in state if "encoder_attn" in name}
    copied = {name for name in state if name.startswith(("model.encoder", "model.decoder", "lm_head"))} - new
    assert all(torch.equal(state[name], theirs[name]) for name in copied)
    assert all(torch.equal(state[name], drawn[name]) for name in new) and len(new) == 2 * 6
    assert not torch.equal(state["model.encoder.embed_tokens.weight"], state["model.decoder.embed_tokens.weight"])
    assert model.lm_head.weight is model.get_decoder().embed_tokens.weight, "the output is tied as the decoder's was"
    config = model.config
    assert (config.encoder_norm_position, config.decoder_norm_position, config.output_bias) == ("pre", "pre", True)
    assert config.decoder_start_token_id == causal.config.eos_token_id, "what its texts begin with"
    # A layer has 12: 4 projections, and weight and bias of 2 norms and 2 maps; embeddings, last norm, output bias.
    assert told[0] == "The encoder begins with 27 tensors of masked (VanillaTransformerForMaskedLM)."
    assert told[1] == "The decoder begins with 28 tensors of causal (VanillaTransformerForCausalLM)."
    layers = "decoder.layers.*.encoder_attn"
    assert told[2] == f"Newly drawn are 12 tensors: {layers}, {layers}_layer_norm."
    # The stacks compute what they computed.
    ids = torch.randint(4, 250, (2, 7))
    with torch.no_grad():
        ours = model.eval().get_encoder()(ids).last_hidden_state
        assert torch.equal(ours, masked.eval().model(ids).last_hidden_state)


def test_transformers_copies_the_same_parts(tmp_path):
    """What users expect of `EncoderDecoderModel.from_encoder_decoder_pretrained`: both stacks copied, the rest new."""
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(tmp_path / "encoder")
    BertLMHeadModel(BertConfig(**{**config.to_dict(), "is_decoder": True})).save_pretrained(tmp_path / "decoder")
    joined = EncoderDecoderModel.from_encoder_decoder_pretrained(
        str(tmp_path / "encoder"), str(tmp_path / "decoder"), decoder_add_cross_attention=True
    )
    parts = BertModel.from_pretrained(tmp_path / "encoder"), BertLMHeadModel.from_pretrained(tmp_path / "decoder")
    for stack, part in zip((joined.encoder, joined.decoder), parts):
        theirs = stack.state_dict()
        assert all(torch.equal(theirs[name], tensor) for name, tensor in part.state_dict().items())
        new = {name for name in theirs if name not in part.state_dict()}
        assert all("crossattention" in name for name in new) and bool(new) == (stack is joined.decoder)
    assert joined.get_input_embeddings().weight is not joined.decoder.get_input_embeddings().weight


def test_one_model_may_give_both_stacks_or_one(folders):
    encoder, _, masked, causal = folders
    model, _, told = new_model(encoder_from=encoder, decoder_from=encoder)
    state = model.state_dict()
    assert model.config.embedding_sharing == "all" and "left out" not in " ".join(told)
    for name, tensor in masked.state_dict().items():
        if name.startswith("model.encoder."):
            assert torch.equal(state[name], tensor)
            assert torch.equal(state[name.replace("encoder", "decoder")], tensor)
    model, drawn, _ = new_model({"decoder_layers": 1}, encoder_from=encoder)
    assert model.config.decoder_layers == 1 and model.config.decoder_ffn_dim == 48
    own = "model.decoder.layers.0.fc1.weight"
    assert torch.equal(model.state_dict()[own], drawn[own])
    model, drawn, told = new_model({"embedding_sharing": "all"}, encoder_from=folders[0], decoder_from=folders[1])
    assert told[2] == "The embeddings, which both stacks share, are those of the decoder."
    assert torch.equal(model.state_dict()["model.shared.weight"], causal.state_dict()["model.shared.weight"])


def test_texts_end_with_the_end_token(folders, tmp_path):
    encoder, decoder, *_ = folders
    for origins in ({"encoder_from": encoder}, {"decoder_from": decoder}):
        tokenizer = open_common_tokenizer(find_origins(ModelArguments(**origins)))
        ids = tokenizer("one two")["input_ids"]
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in ids[:-1]
    with pytest.raises(
        ValueError, match=r"one vocabulary, whose texts are pieces and the end token; this one makes o"
    ):
        check_tokenizer(AutoTokenizer.from_pretrained(decoder))
    # BERT's tokenizer has no end token, but its texts end with one of another name.
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n")
    BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(encoder)
    tokenizer = open_common_tokenizer(find_origins(ModelArguments(encoder_from=encoder)))
    assert tokenizer("one")["input_ids"] == [2, 5, tokenizer.eos_token_id]


def test_a_run_says_what_came_from_where_and_writes_it_on_the_card(folders, prepare, capsys):
    encoder, decoder, *_ = folders
    sizes = dict.fromkeys(("vocab_size", *(name for name in SIZES if name in prepare.recipe)))
    job = prepare(**sizes, encoder_from=encoder, decoder_from=decoder)
    run_job(job)
    card, said = (prepare.out / "README.md").read_text(), capsys.readouterr().out
    for sentence in ("The encoder begins with 27 tensors of masked", "Newly drawn are 12 tensors: decoder.layers"):
        assert sentence in card and sentence in said
    assert encoder not in card
    assert AutoModelForSeq2SeqLM.from_pretrained(prepare.out).config.encoder_layers == 2
    assert prepare(**sizes, encoder_from=encoder, decoder_from=decoder).checkpoint is not None, "it continues"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"d_model": 64}, r"d_model=64 contradicts encoder_from=.*masked, which has 32; remove it"),
        ({"encoder_layers": 3}, r"encoder_layers=3 contradicts encoder_from=.*masked, which has 2"),
        ({"decoder_layers": 3}, r"decoder_layers=3 contradicts decoder_from=.*causal, which has 2"),
        ({"vocab_size": 500}, r"vocab_size=500 contradicts .*masked, which has \d+"),
    ],
)
def test_sizes_are_those_of_the_models(stated, message, folders):
    origins = find_origins(ModelArguments(encoder_from=folders[0], decoder_from=folders[1]))
    with pytest.raises(ValueError, match=message):
        fields_of_origins(origins, stated)


def test_models_that_do_not_go_together_are_refused_in_one_line(folders, tmp_path):
    encoder, decoder, _, causal = folders
    with pytest.raises(ValueError, match="causal is a VanillaTransformerForCausalLM, which has no encoder: expected"):
        find_origins(ModelArguments(encoder_from=decoder))
    BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)).save_pretrained(
        tmp_path / "bert"
    )
    with pytest.raises(
        ValueError, match="bert is a bert model: expected one of this package; vanilla-transformer con"
    ):
        find_origins(ModelArguments(encoder_from=str(tmp_path / "bert")))
    VanillaTransformerForCausalLM(
        VanillaTransformerConfig(**{**SIZES, "vocab_size": causal.config.vocab_size, "norm_type": "rms_norm"})
    ).save_pretrained(tmp_path / "other")
    origins = find_origins(ModelArguments(encoder_from=encoder, decoder_from=str(tmp_path / "other")))
    message = "masked has norm_type='layer_norm', and decoder_from=.*other has 'rms_norm': expected models of the same"
    with pytest.raises(ValueError, match=message):
        fields_of_origins(origins, {})
    tokenizer = VanillaTransformerTokenizer.train(["vier fünf"], vocab_size=280)
    VanillaTransformerForCausalLM(VanillaTransformerConfig(**{**SIZES, "vocab_size": len(tokenizer)})).save_pretrained(
        tmp_path / "words"
    )
    tokenizer.save_pretrained(tmp_path / "words")
    origins = find_origins(ModelArguments(encoder_from=encoder, decoder_from=str(tmp_path / "words")))
    with pytest.raises(
        ValueError, match=r"have different vocabularies .*train the language model with --tokenizer_na"
    ):
        fields_of_origins(origins, {})
    with pytest.raises(ValueError, match=r"have different vocabularies \(\d+ pieces differ\)"):
        open_common_tokenizer(origins)
