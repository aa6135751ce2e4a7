"""
Open a saved model with the Auto classes of transformers alone and translate a few sentences:

    python scripts/try_model.py outputs/quickstart
    python scripts/try_model.py outputs/quickstart "twenty-one" "forty-two thousand and seven"
    python scripts/try_model.py model_cards/multi30k_raw_en_de "A brown dog is running through the snow."
"""

import argparse
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import vanilla_transformer_hf  # noqa: F401  (registers the model with the Auto classes)
from vanilla_transformer_hf.common.command_line import run


EXAMPLES = [
    "twenty-one",
    "nine thousand, eight hundred and seventy-six",
    "three hundred and forty-five thousand, six hundred and seventy-eight",
    "Friday, the twentieth of November nineteen eighty-nine",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder that train.py wrote")
    parser.add_argument("sentence", nargs="*", default=EXAMPLES, help="sentences to translate")
    arguments = parser.parse_args()
    if not Path(arguments.model).is_dir():
        raise FileNotFoundError(f"{arguments.model}: no such folder")
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(arguments.model, trust_remote_code=False)
    batch = tokenizer(arguments.sentence, return_tensors="pt", padding=True)
    translations = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    for source, translation in zip(arguments.sentence, translations, strict=True):
        print(f"{source}\n    {translation}")


if __name__ == "__main__":
    run(main)
