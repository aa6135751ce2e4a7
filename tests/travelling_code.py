"""The files of code that travel with a translation model and its tokenizer: name -> text."""

from vanilla_transformer_hf.model.saving.bundle import files_for, saved_files


MODEL_CODE = files_for("modeling_vanilla_transformer").keys() | files_for("pipeline_vanilla_transformer").keys()
CODE = saved_files().keys()
