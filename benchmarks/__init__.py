"""
Measurements of speed and memory, from the checkout: `python -m benchmarks`.

Each engine runs in its own process, in which this folder is a package named `benchmarks`: other engines then import
nothing of vanilla_transformer_hf, and their memory is measured separately. So files here import each other with
relative imports, and vanilla_transformer_hf with absolute ones.
"""
