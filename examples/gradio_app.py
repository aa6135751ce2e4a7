"""
A page that translates, of Gradio:

    pip install "gradio>=6"
    python examples/gradio_app.py model_cards/multi30k_raw_en_de

As a Space of the Hub: docs/publishing.md.
"""

import sys

import gradio as gr

from vanilla_transformer_hf import Translator


MOST_CHARACTERS = 5_000


def make_page(folder: str) -> gr.Interface:
    """A page for a model's folder or its name on the Hub; each line is translated by itself."""
    translator = Translator.from_pretrained(folder)

    def translate(text: str, num_beams: float) -> str:
        if len(text) > MOST_CHARACTERS:  # the box has its limit in browsers alone
            raise gr.Error(f"The text has {len(text):,} characters: expected at most {MOST_CHARACTERS:,}.")
        return "\n".join(map(str, translator.translate(text.splitlines(), num_beams=int(num_beams))))

    return gr.Interface(
        translate,
        [
            gr.Textbox(label="Text", lines=5, max_length=MOST_CHARACTERS),
            gr.Slider(1, 8, value=4, step=1, label="Beams"),
        ],
        gr.Textbox(label="Translation", lines=5),
        title="Translate",
        api_name="translate",
        flagging_mode="never",
    )


if __name__ == "__main__":
    make_page(sys.argv[1]).launch()
