#!/usr/bin/env bash
# A Hydra from one backbone, as a shell pipeline: each stage is a file, so a Makefile or CI can cache it.
#   examples/pipeline.sh BACKBONE TRAIN VAL TEST OUT_FOLDER
set -euo pipefail
backbone=$1 train=$2 val=$3 test=$4 out=$5
recipe=${RECIPE:-demo}
sample=${SAMPLE:-12/30}

mkdir -p "$out"
hydrasurgeon score --method taylor --data "$val" "$backbone" -o "$out/scored.safetensors" --quiet
for seed in 1 2 3; do
    hydrasurgeon prune --method taylor --sample "$sample" --seed "$seed" "$out/scored" -o "$out/pruned-$seed.safetensors" --quiet
    hydrasurgeon finetune "$out/pruned-$seed" --recipe "$recipe" --freeze mlp --data "$train" --seed "$seed" \
        -o "$out/member-$seed.safetensors" --quiet
done
hydrasurgeon fuse "$out"/member-{1,2,3}.safetensors -o "$out/hydra.safetensors" --check "$val" --tolerance 1e-4
hydrasurgeon eval "$backbone" "$out/hydra.safetensors" --data "$test" --json "$out/report.json"
