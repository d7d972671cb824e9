#!/usr/bin/env bash
# ImageNet-1K (paper 5.1, C.1.2, D.2; Tables 1, 15, 21 and 22): ViT-B/16, 8 of 12 heads a layer.   imagenet.sh [--smoke] OUT
# IMAGENET holds train/ and val/ as class folders, OPENOOD folders of OpenOOD's sets.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) paper=imagenet
pretrained=${PRETRAINED:-timm:vit_base_patch16_224.augreg_in21k}
images=${IMAGENET:-imagenet} openood=${OPENOOD:-openood}
train=$images/train test=$images/val
found=$train limit=5000
chooses=$openood/openimage_o
near=(--ood near:ssb_hard="$openood/ssb_hard" --ood near:ninco="$openood/ninco")
far=(--ood far:inaturalist="$openood/inaturalist" --ood far:textures="$openood/textures")
remove=48 pool=96 keep=8  # of 144; of 12 in each layer; B.5 draws 48 of the first 100 of one circuit
shorter=() naming=() tower=() taylor_tower=()
source "$here/common.sh"

hydrasurgeon finetune "$pretrained" --recipe "$here/imagenet.toml" --set steps=20000 --set warmup=500 --set label_smoothing=0 --set dropout=0 \
    --set augment.rand_augment=null --set freeze=[] --set classifier=fresh ${shorter[@]+"${shorter[@]}"} --data "$train" -o "$out/single.safetensors" --quiet
score "$out/single"
prune
tune --recipe "$here/imagenet.toml" ${shorter[@]+"${shorter[@]}"}
fuse tuned-
hydrasurgeon eval "$out"/{single,tuned-taylor,tuned-circ-avg,hydra-taylor,hydra-circ}.safetensors --data "$test" "${near[@]}" "${far[@]}" \
    --json "$out/report.json"
# Table 4: the same heads gone, and nothing tuned.
hydrasurgeon eval "$out"/{single,taylor,circ-avg}.safetensors --data "$test" "${near[@]}" "${far[@]}" --json "$out/training-free.json"
