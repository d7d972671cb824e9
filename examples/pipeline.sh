#!/usr/bin/env bash
# A hydra from one backbone, as a shell pipeline: each stage is a file, so a Makefile or CI can cache it. RECIPE= (nothing) leaves
# the members untuned: then the hydra is training-free.
#   examples/pipeline.sh BACKBONE TRAIN VAL TEST OUT_FOLDER
set -euo pipefail
backbone=$1 train=$2 val=$3 test=$4 out=$5
recipe=${RECIPE-demo}

mkdir -p "$out"
hydrasurgeon score --method taylor --data "$val" "$backbone" -o "$out/scored.safetensors" --quiet
for seed in 1 2 3; do
    member=$out/member-$seed.safetensors
    pruned=$out/pruned-$seed.safetensors
    hydrasurgeon prune --method taylor --sample 12/30 --seed "$seed" "$out/scored" -o "$pruned" --quiet
    if [[ -z $recipe ]]; then
        cp "$pruned" "$member"
    else
        hydrasurgeon finetune "$pruned" --recipe "$recipe" --freeze mlp --data "$train" --seed "$seed" -o "$member" --quiet
    fi
done
hydrasurgeon fuse "$out"/member-{1,2,3}.safetensors -o "$out/hydra.safetensors" --check "$val" --tolerance 1e-4
hydrasurgeon eval "$backbone" "$out/hydra.safetensors" --data "$test" --json "$out/report.json"
