"""Text in, translations, scores and alignments out."""

from ..model.saving.former_names import alias_modules


# The names that modules had before this folder had rooms: scripts may import them for one release.
FORMER_NAMES = {
    "alignment": "scoring.alignment",
    "attention_maps": "scoring.attention_maps",
    "ctranslate2_translator": "search.ctranslate2_translator",
    "forced_decoding": "scoring.forced_decoding",
    "parts": "text.parts",
    "splitting": "text.splitting",
    "tally": "text.tally",
    "text_model": "scoring.text_model",
    "texts": "text.texts",
    "token_translator": "search.token_translator",
}
alias_modules(__name__, FORMER_NAMES)
