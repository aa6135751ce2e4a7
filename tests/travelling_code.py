"""The names of the files of code that travel with a translation model, and with its tokenizer too."""

from vanilla_transformer_hf.model.saving.bundle import join_modules


MODEL_CODE = join_modules(("modeling_vanilla_transformer", "pipeline_vanilla_transformer")).keys()
CODE = MODEL_CODE | join_modules(("tokenization_vanilla_transformer",)).keys()
