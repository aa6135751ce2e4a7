#!/usr/bin/env bash
# Multi30k, English to German: the three stages of the tiny model, one after the other.
#   bash scripts/recipes/multi30k_tiny.sh FOLDER [--field value …]
# FOLDER has {train,val,test_2016_flickr}.lc.norm.tok.{en,de}, tokenized and lower-cased: data/task1/tok of the corpus; or
# the text as released, without .lc.norm.tok: data/task1/raw. All may end in .gz. Further arguments are for all stages.
# After an interruption, the same call continues from the last checkpoint. With two processes:
#   LAUNCH="accelerate launch --config_file scripts/accelerate/cpu_2.yaml" bash scripts/recipes/multi30k_tiny.sh …
set -euo pipefail
folder=${1:?a folder with train.lc.norm.tok.en and so on is needed}
shift
kind=.lc.norm.tok name=outputs/multi30k_tiny
if ! compgen -G "$folder/train$kind.en*" > /dev/null; then
    kind='' name=outputs/multi30k_raw_tiny
    set -- --bleu_tokenize 13a "$@"
fi
files=()
for part in train=train val=validation test_2016_flickr=test; do
    for side in en=source de=target; do
        path="$folder/${part%=*}$kind.${side%=*}"
        [ -e "$path" ] || path="$path.gz"
        files+=("--${part#*=}_${side#*=}" "$path")
    done
done
stage() { # recipe, number of arguments in `files` that it is given, and others
    ${LAUNCH:-python} -m vanilla_transformer_hf train "$1" "${files[@]:0:$2}" "${@:3}"
}
stage multi30k_tiny 8 --output_dir "$name" "$@"
stage multi30k_tiny_r_drop 8 --model_name_or_path "$name" --output_dir "${name}_r_drop_1" "$@"
# The same again for longer; the test text is scored once, at the end.
third=(--model_name_or_path "${name}_r_drop_1" --output_dir "${name}_r_drop" --num_train_epochs 42 --length_penalty 1.0)
stage multi30k_tiny_r_drop 12 "${third[@]}" "$@"
