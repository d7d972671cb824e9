#!/usr/bin/env bash
# CIFAR-100 (paper 5.1, C.1.3, D.2; Tables 1, 16 and 23): ViT-B/16, 10 of 12 heads a layer.   cifar100.sh [--smoke] OUT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) paper=cifar100
pretrained=${PRETRAINED:-timm:vit_base_patch16_224.augreg_in21k}
train=hf:uoft-cs/cifar100:train test=hf:uoft-cs/cifar100:test
found=$train limit=5000                      # what heads are scored on; the paper does not say how many
chooses=${TINY_IMAGENET:-tiny-imagenet/val}  # finds circuits, and is therefore not among what is reported
near=(--ood near:cifar10=hf:uoft-cs/cifar10:test)
far=(--ood far:mnist=hf:ylecun/mnist:test --ood far:svhn=hf:ufldl-stanford/svhn/cropped_digits:test --ood far:textures=hf:tanganke/dtd:test --ood far:places365="${PLACES:-places365/val}")
remove=24 pool=48 keep=10                    # of 144; of 12 in each layer
shorter=() naming=() tower=() taylor_tower=()
source "$here/common.sh"

# The recipe is for after pruning (five last layers); the backbone is tuned whole, without label smoothing.
hydrasurgeon finetune "$pretrained" --recipe "$here/cifar100.toml" --set last_blocks=null --set label_smoothing=0 --set classifier=fresh ${shorter[@]+"${shorter[@]}"} \
    --data "$train" -o "$out/single.safetensors" --quiet
score "$out/single"
prune
tune --recipe "$here/cifar100.toml" ${shorter[@]+"${shorter[@]}"}
fuse tuned-
hydrasurgeon eval "$out"/{single,tuned-taylor,tuned-circ-avg,hydra-taylor,hydra-circ}.safetensors --data "$test" "${near[@]}" "${far[@]}" \
    --json "$out/report.json"
