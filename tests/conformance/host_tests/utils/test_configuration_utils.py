"""Stand-in for the module of the same name, which the source distribution of transformers leaves out."""

# A value other than the default for every field that all configurations share.
config_common_kwargs = {
    **{"return_dict": False, "output_hidden_states": True, "output_attentions": True, "dtype": "float16"},
    **{"chunk_size_feed_forward": 3, "architectures": ["AnyModel"], "id2label": {0: "yes"}, "label2id": {"yes": 0}},
    "problem_type": "regression",
}
