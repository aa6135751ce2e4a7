"""
The subcommands of `vanilla-transformer benchmark`.

Each engine runs in a process of its own, in which this folder is a package named `benchmarks`: so an engine of others
imports nothing of vanilla_transformer_hf, and its memory is its own. Hence files here import each other relatively,
and the package by its name.
"""
