"""What prune and fuse write stays what it was, byte for byte: recorded once, library versions aside."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import hydrasurgeon as hs

ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=5"
RECORDED = Path(__file__).parents[1] / "golden" / "recorded.json"
MASKS = ([[0, 1, 2, 3], [0, 1], [1, 2, 3]], [[0, 1, 2, 3], [1, 3], []])


def backbone(path: Path, seed: int) -> Path:
    """Weights from numpy's generator, whose numbers are the same everywhere."""
    rng = np.random.RandomState(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 32),
        "pos_embed": (1, 17, 32),
        "norm.weight": (32,),
        "norm.bias": (32,),
        "patch_embed.proj.weight": (32, 1, 7, 7),
        "patch_embed.proj.bias": (32,),
        "head.weight": (5, 32),
        "head.bias": (5,),
    }
    for block in (f"blocks.{i}" for i in range(3)):
        for name, rows in (("attn.qkv", 96), ("attn.proj", 32), ("mlp.fc1", 128)):
            shapes |= {f"{block}.{name}.weight": (rows, 32), f"{block}.{name}.bias": (rows,)}
        shapes |= {f"{block}.mlp.fc2.weight": (32, 128), f"{block}.mlp.fc2.bias": (32,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.weight": (32,), f"{block}.{norm}.bias": (32,)}
    tensors = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def anatomised(path: Path) -> dict[str, str]:
    """Hashes of a file's header, without the versions of libraries in it, and of its tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    manifest = json.loads(header["__metadata__"]["hydrasurgeon"])
    for step in manifest["history"]:
        step["versions"] = {}
    # It covers the versions too.
    assert len(manifest.pop("record_sha256")) == 64
    header["__metadata__"]["hydrasurgeon"] = manifest
    text = json.dumps(header, sort_keys=True).encode()
    return {
        "header": hashlib.sha256(text).hexdigest(),
        "tensors": hashlib.sha256(content[8 + length :]).hexdigest(),
    }


def outputs(folder: Path) -> dict[str, dict[str, str]]:
    made: dict[str, dict[str, str]] = {}
    members = []
    for number, rows in enumerate(MASKS, 1):
        source = backbone(folder / f"vit{number}.safetensors", seed=number)
        mask = folder / f"mask{number}.json"
        mask.write_text(json.dumps({"vision": rows}))
        members.append(
            hs.prune(source, mask=mask, arch=ARCH, out=folder / f"m{number}.safetensors").path
        )
    for mlp in ("average", "separate"):
        hs.fuse(members, mlp=mlp, out=folder / f"{mlp}.safetensors")
    for path in (*members, folder / "average.safetensors", folder / "separate.safetensors"):
        made[path.name] = anatomised(path)
    return made


def test_prune_and_fuse_write_what_they_wrote(tmp_path: Path) -> None:
    assert outputs(tmp_path) == json.loads(RECORDED.read_text())
