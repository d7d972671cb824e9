#!/usr/bin/env bash
# A Hydra from one backbone, as a shell pipeline: each stage is a file, so a Makefile or CI can cache it.
#   examples/pipeline.sh BACKBONE TRAIN VAL TEST OUT_FOLDER
# Heads are ranked by METHOD: taylor, magnitude, or circuit for OBJECTIVE acc, ood or avg, the last two with foreign
# data in OOD. RECIPE= (nothing) leaves the members untuned: then the hydra is training-free.
#   METHOD=circuit OBJECTIVE=avg OOD=foreign.npz RECIPE= examples/pipeline.sh …
set -euo pipefail
backbone=$1 train=$2 val=$3 test=$4 out=$5
recipe=${RECIPE-demo}
sample=${SAMPLE:-12/30}
criterion=(--method "${METHOD:-taylor}")
search=()
if [[ ${METHOD:-} == circuit ]]; then
    criterion+=(--objective "${OBJECTIVE:-acc}")
    search+=(--remove "${sample#*/}")  # no head beyond the pool that members are drawn from
fi
if [[ -n ${OOD:-} ]]; then search+=(--ood "$OOD"); fi

mkdir -p "$out"
hydrasurgeon score "${criterion[@]}" ${search[@]+"${search[@]}"} --data "$val" "$backbone" -o "$out/scored.safetensors" --quiet
for seed in 1 2 3; do
    member=$out/member-$seed.safetensors
    if [[ -z $recipe ]]; then
        hydrasurgeon prune "${criterion[@]}" --sample "$sample" --seed "$seed" "$out/scored" -o "$member" --quiet
        continue
    fi
    hydrasurgeon prune "${criterion[@]}" --sample "$sample" --seed "$seed" "$out/scored" -o "$out/pruned-$seed.safetensors" --quiet
    hydrasurgeon finetune "$out/pruned-$seed" --recipe "$recipe" --freeze mlp --data "$train" --seed "$seed" -o "$member" --quiet
done
hydrasurgeon fuse "$out"/member-{1,2,3}.safetensors -o "$out/hydra.safetensors" --check "$val" --tolerance 1e-4
hydrasurgeon eval "$backbone" "$out/hydra.safetensors" --data "$test" --json "$out/report.json"
