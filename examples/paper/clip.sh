#!/usr/bin/env bash
# Zero-shot CLIP (paper 5.3, C.3, D.3; Tables 3 and 24 to 26): ViT-B/32 of LAION-2B, 24 heads of both towers, nothing trained.   clip.sh [--smoke] OUT
# IMAGENET holds train/ and val/, OPENOOD folders of OpenOOD's sets, SETS folders of the data sets that have no splits on the hub.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) paper=clip
single=${PRETRAINED:-open_clip:ViT-B-32/laion2b_s34b_b79k}
images=${IMAGENET:-imagenet} openood=${OPENOOD:-openood} more=${SETS:-sets}
found=$images/train limit=5000
chooses=$openood/openimage_o
names=imagenet.names  # python -c 'import open_clip; print("\n".join(open_clip.IMAGENET_CLASSNAMES))'
sets=(--data in1k="$images/val" --data c100=hf:uoft-cs/cifar100:test --data c10=hf:uoft-cs/cifar10:test --data food=hf:ethz/food101:validation
    --data sun="$more/sun397" --data pet=hf:timm/oxford-iiit-pet:test --data dtd=hf:tanganke/dtd:test --data eurosat="$more/eurosat" --data caltech="$more/caltech101")
near=(--ood near:ssb_hard="$openood/ssb_hard" --ood near:ninco="$openood/ninco")
far=(--ood far:inaturalist="$openood/inaturalist" --ood far:textures="$openood/textures")
remove=24 pool=48 keep=10  # of 144 and 96; of 12 in each layer of the image tower
tower=(--tower both)
source "$here/common.sh"
naming=(--classes "$names" --template "A photo of a {label}.")
taylor_tower=(--tower vision)  # Taylor's scores of the two towers are on different scales (Figure 7)

score "$single"
prune
fuse ""
hydrasurgeon eval "$single" "$out"/{taylor,circ-avg,hydra-circ}.safetensors "${sets[@]}" --classes data --classes in1k="$names" \
    --template "A photo of a {label}." "${near[@]}" "${far[@]}" --json "$out/report.json"
