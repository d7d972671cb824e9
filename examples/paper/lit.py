"""LiT (paper D.3, Table 27): the text tower of a CLIP learns to meet its locked image tower.

    python lit.py vision-acc PAIRS.jsonl lit-acc.safetensors [steps] [pairs a step]

PAIRS.jsonl has `image`, a file beside it, and `text`. The loss is OpenCLIP's ClipLoss; AdamW, betas,
eps, weight decay, rate, warm-up, schedule and crop are the paper's. It took 96,000 pairs a step of 60M
pairs of LAION-400M for one epoch, on 16 GPUs, which one process does not do. Then fuse the members:
`hydrasurgeon fuse lit-acc lit-ood lit-avg -o hydra-lit --mlp separate`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn.functional import normalize
from writing import write

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

WARMUP = 100
LARGEST = math.log(100)
"""logit_scale is kept below it."""


def train(checkpoint: Path, pairs: Path, out: Path, steps: int = 625, size: int = 1500) -> None:
    from open_clip.loss import ClipLoss

    opened = open_checkpoint(checkpoint)
    model, family = opened.manifest.model, opened.family
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = hs.load(checkpoint, device=device).module.train()
    crop = {"random_resized_crop": [0.9, 1.0]}
    prepare = family.transform(model, crop, files=opened.files)
    tokens_of = family.tokenizing(model, opened.files)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    text = [part for part in module.text_parts() if part is not None]
    tuned = [
        p for part in text for p in (part.parameters() if isinstance(part, nn.Module) else [part])
    ]
    for parameter in tuned:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(tuned, lr=5e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    warmup = min(WARMUP, steps)

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    loss_of, torch_order = ClipLoss(), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    for _ in range(steps):
        chosen = [rows[i] for i in torch.randperm(len(rows), generator=torch_order)[:size]]
        pictures = [prepare(Image.open(pairs.parent / row["image"])) for row in chosen]
        with torch.no_grad():
            images = normalize(module.encode_images(torch.stack(pictures).to(device)), dim=-1)
        tokens = tokens_of([row["text"] for row in chosen]).to(device)
        texts = normalize(module.encode_texts(tokens), dim=-1)
        loss = loss_of(images, texts, module.log_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            module.log_scale.clamp_(0, LARGEST)
    write(checkpoint, module, out)


if __name__ == "__main__":
    source, data, target, *numbers = sys.argv[1:]
    train(Path(source), Path(data), Path(target), *map(int, numbers))
