"""
A table of models: parameters, size, speed for one sentence and in batches of 32, BLEU of a held-out text.

    python scripts/compare_models.py val.en.gz val.de.gz outputs/teacher outputs/student outputs/pruned

Rounds go through the models in turn, and a speed is the median of the rounds: on a computer that does other work too,
compare the rows of one run only. The search is the one that each model was saved with.
"""

import statistics
import time
from pathlib import Path

from transformers.utils import logging

from vanilla_transformer_hf import Translator
from vanilla_transformer_hf.common.command_line import make_parser, run
from vanilla_transformer_hf.common.lines import read_lines
from vanilla_transformer_hf.evaluation.scores import score_translations


def main():
    parser = make_parser("compare_models.py", __doc__)
    parser.add_argument("source", help="held-out text, one sentence per line")
    parser.add_argument("target", help="its translations")
    parser.add_argument("models", nargs="+", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of speed (default: %(default)s)")
    parser.add_argument("--bleu_tokenize", default="13a", help="sacreBLEU's tokenizer (default: %(default)s)")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    sources, references = (list(read_lines(name)) for name in (arguments.source, arguments.target))
    step = max(1, len(sources) // 64)
    chosen = sources[::step][:64]
    translators = {name: Translator.from_pretrained(name, matmul_backend="default") for name in arguments.models}
    speeds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in translators for size in (1, 32)}
    for _ in range(arguments.rounds + 1):  # the first warms up
        for name, translator in translators.items():
            for size, texts in ((1, chosen[:16]), (32, chosen)):
                begin = time.perf_counter()
                for start in range(0, len(texts), size):
                    translator.translate(texts[start : start + size])
                speeds[name, size].append(len(texts) / (time.perf_counter() - begin))
    print("| model | parameters | MB | sentences/s, one | sentences/s, 32 | BLEU |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, translator in translators.items():
        size = sum(path.stat().st_size for path in Path(name).glob("*.safetensors")) / 1e6
        one, many = (statistics.median(speeds[name, batch][1:]) for batch in (1, 32))
        scores = score_translations(translator.translate(sources), references, tokenize=arguments.bleu_tokenize)
        parameters = translator.model.num_parameters()
        print(f"| {Path(name).name} | {parameters:,} | {size:.1f} | {one:.1f} | {many:.1f} | {scores.bleu:.2f} |")


if __name__ == "__main__":
    run(main)
