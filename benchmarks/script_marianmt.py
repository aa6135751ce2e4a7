"""
Translate a text as transformers' documentation shows it for MarianMT, in batches:

    python script_marianmt.py FOLDER BEAMS BATCH_SIZE < test.en > test.de
"""

import sys

from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast


folder, beams, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
lines = sys.stdin.read().splitlines()
for start in range(0, len(lines), batch_size):
    batch = tokenizer(lines[start : start + batch_size], return_tensors="pt", padding=True)
    ids = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beams)
    for line in tokenizer.batch_decode(ids, skip_special_tokens=True):
        print(line)
