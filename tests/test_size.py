"""
How large each folder of the package may be. A change lowers these numbers, or says in the row which new ability they
paid for; `python scripts/measure_size.py` prints them.
"""

import runpy
import subprocess
import sys

import pytest
from hub_server import ROOT


# Folder -> files; lines, in hundreds; functions with one use, in fives.
MOST = {
    ".": (3, 340, 5),
    # Options of glossaries, memories, suggestions, minimum risk, runs; score-systems. All of them begin and end in two
    # thirds of the time.
    "commands": (24, 2_200, 5),
    # Readers of both sides, of training before, which memories have, too, and say what to do without languages.
    # A lock on each file that is written, which runs that continue had alone; on shares of Windows, too.
    "common": (21, 2_675, 30),
    "conversion": (34, 6_775, 30),
    "evaluation": (5, 540, 5),  # score-systems: tests of differences, and their page
    "explorer": (17, 3_485, 15),  # runs that are watched; recurrent models; what neurons write for
    "export": (10, 1_140, 5),  # the folder for transformers.js
    # Which fields can have the kind that an option needs; samples, scores and a user's processors in this search.
    # Inputs of int8 in seven bits; samples of random bits; settings of a search without transformers. Masks of padding
    # that some releases do not make. Candidates of all beams of a sentence in one search, a fifth of a beam search.
    # One sentence's attention to its source with the projections in its keys and values. Logits of the hypotheses that
    # count alone, and finished ones only where some end: a sixteenth of a whole search. Inference tensors where nobody
    # else sees them: a tenth of one sentence's time.
    # Parts that only some configs and calls need are apart, so that they stay out of the folders of others.
    "model": (74, 11_729, 65),
    "publishing": (7, 1_915, 15),
    "recurrent": (5, 785, 5),
    "serving": (17, 3_790, 25),  # terms, memories and minimum risk of requests, suggestions
    # Differences of variants; runs while they grow; sizes by the number of pairs, and steps between evaluations.
    # What a recipe says of a text that is replaced; tokens of merges that a converted vocabulary lacks. A damaged
    # file of scores, and a header of a teacher's text, in words; splits and delays without effect. The tokens of an
    # average's checkpoints; the saved beams, tokenizer and search of a teacher.
    "training": (50, 9_779, 115),
    # Glossaries and memories; minimum Bayes risk and its n-best; a kept copy for CTranslate2 without torch.
    "translation": (52, 7_585, 70),
}
MEASURED = runpy.run_path(str(ROOT / "scripts" / "measure_size.py"))["measure"]()


def test_every_folder_has_a_ceiling():
    assert MOST.keys() == MEASURED.keys() - {"all"}


@pytest.mark.parametrize("folder", MOST)
def test_a_folder_does_not_grow(folder):
    size = MEASURED[folder]
    found = dict(
        zip(("files", "lines", "functions with one use"), (size.files, size.lines, size.one_use), strict=True)
    )
    more = {
        name: (count, most) for (name, count), most in zip(found.items(), MOST[folder], strict=True) if count > most
    }
    assert not more, "now, and at most"


@pytest.mark.slow
def test_ways_to_the_work_are_short():
    """A table of `scripts/measure_paths.py`; calls to the first product are also counted by the tests of the model."""
    command = [sys.executable, str(ROOT / "scripts" / "measure_paths.py")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = {line[:34].strip(): line[34:].split() for line in lines[1:8]}
    assert int(rows["forward, to a product"][0]) <= 7
    assert all(int(row[-4].replace(",", "")) > 10 for row in rows.values()), rows


def test_the_page_of_the_explorer_does_not_grow():
    """Without its texts, of which there is a file for each language."""
    files = [path for path in (ROOT / "vanilla_transformer_hf" / "explorer" / "page").iterdir() if path.is_file()]
    files = [path for path in files if not path.name.startswith("texts_")]
    # 40 lines of these show the attention and the ranks of two models beside each other, 45 a norm's μ, σ, γ and β in
    # the tour, with all numbers of its vectors and all weights of its heads as maps, 230 a run that is watched.
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) <= 6_470
