"""
Translate a text by CTranslate2, in batches that it makes itself, with the tokenizers package beside it:

    python script_ctranslate2.py FOLDER BEAMS BATCH_SIZE COMPUTE_TYPE [MAX_LENGTH] < test.en > test.de
"""

import os
import sys

import ctranslate2
from tokenizers import Tokenizer


folder, beams, batch_size, compute_type = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
limits = {"max_decoding_length": int(sys.argv[5])} if len(sys.argv) > 5 else {}
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
vocabulary = tokenizer.get_vocab()
threads = int(os.environ["OMP_NUM_THREADS"])
translator = ctranslate2.Translator(folder, compute_type=compute_type, inter_threads=1, intra_threads=threads)
sources = (tokenizer.encode(line.rstrip("\n")).tokens for line in sys.stdin)
for result in translator.translate_iterable(sources, max_batch_size=batch_size, beam_size=beams, **limits):
    print(tokenizer.decode([vocabulary[token] for token in result.hypotheses[0]]))
