"""What a hydra of three members costs against one model, its members in sequence, and other ways to run ensembles.

Random weights of real shapes; all contenders are timed in turn in one process, figures are ratios of medians.
Writes benchmarks/results/fused-<cpu|cuda>.json, from which tools/render_docs.py makes docs/benchmarks.md.

    python benchmarks/fused.py [--arch vit_base_patch16_224] [--batch 1,4,16,64] [--dtype float32,bfloat16]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoint import open_checkpoint, rewritten, save
from hydrasurgeon.cost import macs, parameters
from hydrasurgeon.loading import Classifier, to_raw, to_tensor
from hydrasurgeon.stages.finetune import fresh
from hydrasurgeon.tensorfile import Planned, digest
from hydrasurgeon.timing import Sequence as InTurn
from hydrasurgeon.timing import interleaved, machine, peak_bytes

RESULTS = Path(__file__).parent / "results"
MEMBERS = 3


def members(backbone: Path, *, first: int, tuned: bool, folder: Path) -> list[Path]:
    """Three prunings that keep two thirds of the heads, the first `first` layers untouched.

    `tuned` members differ in everything but the layers before `first`, as after separate finetuning.
    """
    manifest = open_checkpoint(backbone).manifest
    ((tower, size),) = manifest.towers.items()
    made = []
    for i in range(MEMBERS):
        generator = torch.Generator().manual_seed(i)
        rows = [
            list(range(size.heads))
            if layer < first
            else sorted(torch.randperm(size.heads, generator=generator)[: 2 * size.heads // 3].tolist())
            for layer in range(size.layers)
        ]  # fmt: skip
        mask = folder / "mask.json"
        mask.write_text(json.dumps({tower: rows}))
        path = folder / f"first{first}-{'tuned' if tuned else 'free'}-{i}.safetensors"
        hs.prune(backbone, mask=mask, out=path, force=True)
        if tuned:
            perturb(path, first=first, seed=i)
        made.append(path)
    return made


def perturb(path: Path, *, first: int, seed: int) -> None:
    """Add noise to what finetuning with a frozen trunk would change."""
    from hydrasurgeon.backends import backend

    opened = open_checkpoint(path)
    family = backend(opened.manifest.model.family)
    generator = torch.Generator().manual_seed(seed)

    def planned(name: str) -> Planned:
        info = opened.tensors[name]
        raw = opened.tensors.read(name)
        place = family.layer_of(name)
        frozen = first > 0 and (
            place[1] < first if place else family.embedding_of(name) is not None
        )
        if not frozen:
            tensor = to_tensor(raw, info.dtype)
            noise = 1e-3 * torch.randn(tensor.shape, generator=generator)
            raw = to_raw(tensor + noise)[0]
        return Planned(name, info.dtype, info.shape, lambda: (raw, digest(raw)))

    plans = [planned(name) for name in opened.tensors]
    save(path, plans, lambda sha256: rewritten(opened.manifest, weights_sha256=sha256))


class Vmapped(nn.Module):
    """torch.func: stacked parameters, one vmapped call."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.base = [models[0]]  # in a list: its own weights are not part of this model
        state = torch.func.stack_module_state(list(models))[0]
        self.state = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(p.detach()) for name, p in state.items()}
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = {name.replace("/", "."): p for name, p in self.state.items()}
        return torch.func.vmap(
            lambda own: torch.func.functional_call(self.base[0], own, (inputs,)), randomness="same"
        )(state)


class Packed(nn.Module):
    """torch-uncertainty's packed layers: three full-width encoders (they cannot drop heads)."""

    def __init__(self, dim: int, heads: int, layers: int) -> None:
        from torch_uncertainty.layers import PackedTransformerEncoderLayer

        super().__init__()
        self.layers = nn.ModuleList(
            PackedTransformerEncoderLayer(
                d_model=dim, nhead=heads, dim_feedforward=4 * dim, alpha=MEMBERS, num_estimators=MEMBERS,
                batch_first=True, norm_first=True, first=i == 0, last=i == layers - 1,
            )
            for i in range(layers)
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def contenders(arch: str, folder: Path) -> dict[str, Callable[[], nn.Module]]:
    """Name → how to load it, so that only one dtype's worth of weights is in memory."""
    backbone = folder / "backbone.safetensors"
    fresh(f"init:timm:{arch}", backbone, seed=0)
    depth = next(iter(open_checkpoint(backbone).manifest.towers.values())).layers
    found: dict[str, Callable[[], nn.Module]] = {"single": lambda: hs.load(backbone)}
    made = {}
    for name, first, tuned in (
        ("tuned", 0, True),
        ("training-free", 0, False),
        (f"tuned, trunk {depth // 2}", depth // 2, True),
        (f"tuned, trunk {3 * depth // 4}", 3 * depth // 4, True),
    ):
        made[name] = members(backbone, first=first, tuned=tuned, folder=folder)
        fused = folder / f"hydra-{len(made)}.safetensors"
        hs.fuse(made[name], out=fused)
        found[f"hydra, {name}"] = lambda fused=fused: hs.load(fused)
    parts = made["tuned"]
    found["members in sequence"] = lambda: InTurn([hs.load(p) for p in parts])
    found["Deep Ensemble in sequence"] = lambda: InTurn([hs.load(backbone) for _ in range(MEMBERS)])
    found["torch.func.vmap of the members"] = lambda: Vmapped([hs.load(p).module for p in parts])
    return found


def measure(
    arch: str, batches: list[int], dtypes: list[str], runs: int, device: str, only: str | None
) -> list[dict[str, Any]]:
    """One row for each contender, batch size and dtype."""
    where = torch.device(device)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        ways = contenders(arch, Path(name))
        ways = {
            k: v
            for k, v in ways.items()
            if only is None or k == "single" or any(o in k for o in only.split("|"))
        }
        sizes: dict[str, tuple[int, int]] = {}
        for dtype in dtypes:
            precision = getattr(torch, dtype)
            models = {k: make().to(where, precision).eval() for k, make in ways.items()}
            size = next(
                m for m in models.values() if isinstance(m, Classifier)
            ).manifest.model.preprocess["input_size"]
            if not sizes:
                one = torch.randn(1, *size, device=where, dtype=precision)
                # A vmapped call hides its products from the counter: it does what its members do.
                sizes = {
                    k: (parameters(m), 0 if isinstance(m, Vmapped) else macs(m, one))
                    for k, m in models.items()
                }
            for batch in batches:
                inputs = torch.randn(batch, *size, device=where, dtype=precision)
                peaks = {k: peak_bytes(m, inputs) for k, m in models.items()}
                seconds = interleaved(models, inputs, runs=runs)
                for k, taken in seconds.items():
                    params, products = sizes[k]
                    rows.append(
                        {
                            "contender": k,
                            "batch": batch,
                            "dtype": dtype,
                            "ms": 1000 * taken,
                            "ratio": taken / seconds["single"],
                            "macs_ratio": products / sizes["single"][1] or None,
                            "params_ratio": params / sizes["single"][0],
                            "peak_mb": peaks[k] / 1e6,
                        }
                    )
                    print(rows[-1], flush=True)
    return rows  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="vit_base_patch16_224")
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", help="contenders whose name holds one of these, separated by |")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    rows = measure(
        given.arch, [int(b) for b in given.batch.split(",")], given.dtype.split(","), given.runs, given.device, given.only
    )  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"fused-{given.device}.json"
    stored = json.loads(path.read_text()) if path.exists() else {"results": {}}
    stored["machine"] = machine(torch.device(given.device))
    stored["runs"] = given.runs
    # A partial run replaces its own points only.
    fresh_keys = {(r["contender"], r["batch"], r["dtype"]) for r in rows}
    kept = [
        r
        for r in stored["results"].get(given.arch, [])
        if (r["contender"], r["batch"], r["dtype"]) not in fresh_keys
    ]
    stored["results"][given.arch] = kept + rows
    path.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
