"""Named sizes: their differences from the defaults of the config, which are the paper's base model."""

from typing import Any


# Gated feed-forward of Shazeer 2020 (arXiv 2002.05202) -> its activation_function with feed_forward_type="gated".
GATED_ACTIVATIONS = {"glu": "sigmoid", "bilinear": "linear", "reglu": "relu", "geglu": "gelu", "swiglu": "silu"}


def both(**fields: Any) -> dict[str, Any]:
    """Fields of both stacks from what is behind "encoder_" and "decoder_" in their names."""
    return {f"{stack}_{name}": value for name, value in fields.items() for stack in ("encoder", "decoder")}


# What differs from the base model, which is the set of defaults. Rows of Table 3 carry the paper's letters.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "A-h1": both(attention_heads=1),
    "A-h4": both(attention_heads=4),
    "A-h16": both(attention_heads=16),
    "A-h32": both(attention_heads=32),
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": both(layers=2),
    "C-N4": both(layers=4),
    "C-N8": both(layers=8),
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": both(ffn_dim=1024),
    "C-ff4096": both(ffn_dim=4096),
    "D-p0": {"dropout": 0.0},
    "D-p2": {"dropout": 0.2},
    "D-ls0": {"label_smoothing": 0.0},
    "D-ls2": {"label_smoothing": 0.2},
    "E": {"position_encoding": "learned"},
    "big": {"d_model": 1024, **both(ffn_dim=4096, attention_heads=16), "dropout": 0.3},
    # Deep encoder and shallow decoder of Kasai et al. 2021 (arXiv 2006.10369): most of the time is the decoder's.
    "deep_shallow": {"encoder_layers": 12, "decoder_layers": 1},
    # JoeyNMT's IWSLT14 benchmark (19 M parameters).
    "iwslt_de_en": {
        "vocab_size": 32000,
        "d_model": 256,
        **both(ffn_dim=1024, attention_heads=4, norm_position="pre"),
        "dropout": 0.3,
    },
    # Transformer-Tiny and Transformer-Small of Wu et al. 2021 (arXiv 2105.14462).
    "multi30k_tiny": {
        "vocab_size": 10000,
        "d_model": 128,
        **both(layers=4, ffn_dim=256, attention_heads=4),
        "dropout": 0.3,
    },
    "multi30k_small": {"vocab_size": 10000, **both(ffn_dim=1024, attention_heads=4), "dropout": 0.3},
    # The base model with gated feed-forwards of two thirds of the width, which have as many weights.
    **{
        name: {"feed_forward_type": "gated", "activation_function": activation, **both(ffn_dim=1368)}
        for name, activation in GATED_ACTIVATIONS.items()
    },
}
