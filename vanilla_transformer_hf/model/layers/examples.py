"""Examples for docstrings of classes, in the API reference and in `help()`; a test runs them."""

from inspect import cleandoc


EXAMPLES = {
    "VanillaTransformerModel": """
```python
>>> import torch
>>> from vanilla_transformer_hf import VanillaTransformerConfig, VanillaTransformerModel
>>> model = VanillaTransformerModel(VanillaTransformerConfig(vocab_size=99, d_model=32))
>>> source, target = torch.randint(4, 99, (2, 7)), torch.randint(4, 99, (2, 5))
>>> model(source, decoder_input_ids=target).last_hidden_state.shape
torch.Size([2, 5, 32])
```
""",
    "VanillaTransformerForConditionalGeneration": """
```python
>>> from transformers import AutoTokenizer
>>> from vanilla_transformer_hf import VanillaTransformerForConditionalGeneration
>>> folder = "model_cards/multi30k_raw_en_de"
>>> model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
>>> tokenizer = AutoTokenizer.from_pretrained(folder)
>>> batch = tokenizer("Two dogs are playing.", return_tensors="pt")
>>> tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
['Zwei Hunde spielen.']
>>> labels = tokenizer(text_target="Zwei Hunde spielen.", return_tensors="pt")["input_ids"]
>>> outputs = model.eval()(**batch, labels=labels)
>>> outputs.logits.shape, outputs.loss.shape
(torch.Size([1, 5, 10000]), torch.Size([]))
```
""",
}


def add_examples(*kinds: type) -> None:
    """End the docstrings of these classes with their examples."""
    for kind in kinds:
        kind.__doc__ = f"{cleandoc(kind.__doc__ or '')}\n\nExample:\n{EXAMPLES[kind.__name__]}"
