#!/usr/bin/env bash
# SST-2 (paper 5.2, C.2, D.2; Tables 2 and 17 to 20): bert-base-uncased, 6 of 12 heads a layer.   sst2.sh [--smoke] OUT
# TEXTS holds .jsonl files with `text`, and `label` in train (GLUE's training rows from 3,000 on), val (the first 3,000) and test (GLUE's validation rows).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) paper=sst2
pretrained=${PRETRAINED:-hf:google-bert/bert-base-uncased}
texts=${TEXTS:-texts}
train=$texts/train.jsonl val=$texts/val.jsonl test=$texts/test.jsonl
found=$val limit=3000
chooses=$texts/ag_news.jsonl
near=(--ood near:yelp="$texts/yelp_polarity.jsonl" --ood near:amazon="$texts/amazon_polarity.jsonl")
far=()
for name in 20ng trec mnli rte wmt16; do far+=(--ood far:$name="$texts/$name.jsonl"); done
remove=72 pool=108 keep=6  # of 144; of 12 in each layer
shorter=() naming=() tower=() taylor_tower=()
source "$here/common.sh"

hydrasurgeon finetune "$pretrained" --recipe "$here/sst2.toml" --set lr=8e-6 --set epochs=7 --set freeze=[] --set classifier=fresh ${shorter[@]+"${shorter[@]}"} \
    --data "$train" --val "$val" -o "$out/single.safetensors" --quiet
# Deep Ensembles (D): one tuned backbone, and classifiers of three seeds on it.
for seed in 1 2 3; do
    hydrasurgeon finetune "$out/single" --recipe "$here/sst2.toml" --set classifier=fresh --freeze embeddings,attention,norms,mlp,readout ${shorter[@]+"${shorter[@]}"} \
        --data "$train" --val "$val" --seed "$seed" -o "$out/classifier-$seed.safetensors" --quiet
done
score "$out/single"
prune
tune --recipe "$here/sst2.toml" --val "$val" ${shorter[@]+"${shorter[@]}"}
fuse tuned-
sets=(--data "$test" "${near[@]}" "${far[@]}")
hydrasurgeon eval "$out"/{single,tuned-taylor,tuned-circ-avg,hydra-taylor,hydra-circ}.safetensors "${sets[@]}" --json "$out/report.json"
hydrasurgeon eval --ensemble "$out"/classifier-{1,2,3}.safetensors "${sets[@]}" --json "$out/deep-ensemble.json"
"${PYTHON:-python}" "$here/mc_dropout.py" "$out/single.safetensors" 10 "$out/mc-dropout.safetensors" "$test" "${near[@]}" "${far[@]}"
hydrasurgeon eval --predictions-in "$out/mc-dropout.safetensors" --json "$out/mc-dropout.json"
