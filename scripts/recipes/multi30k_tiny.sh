#!/usr/bin/env bash
# Multi30k, English to German, tokenized and lower-cased: both stages of the tiny model, one after the other.
#   bash scripts/recipes/multi30k_tiny.sh FOLDER [--field value …]
# FOLDER has {train,val,test_2016_flickr}.lc.norm.tok.{en,de}, or the same with .gz: data/task1/tok of the corpus. Further
# arguments are for both stages. What was stopped goes on from its last checkpoint when it is called again. With two
# processes: LAUNCH="accelerate launch --config_file scripts/accelerate/cpu_2.yaml" bash scripts/recipes/…
set -euo pipefail
folder=${1:?a folder with train.lc.norm.tok.en and so on is needed}
shift
files=()
for part in train=train val=validation test_2016_flickr=test; do
    for side in en=source de=target; do
        path="$folder/${part%=*}.lc.norm.tok.${side%=*}"
        [ -e "$path" ] || path="$path.gz"
        files+=("--${part#*=}_${side#*=}" "$path")
    done
done
for stage in multi30k_tiny multi30k_tiny_r_drop; do
    [ "$stage" = multi30k_tiny ] && last=8 || last=12 # the test text is scored once, at the end
    ${LAUNCH:-python} scripts/train.py "scripts/recipes/$stage.yaml" "${files[@]:0:$last}" "$@"
done
