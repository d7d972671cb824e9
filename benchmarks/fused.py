"""Cost of a hydra of three members against one model, its members in sequence, and other ways to
run ensembles.

Random weights of real shapes; all contenders are timed in turn in one process, figures are ratios of medians.
Writes benchmarks/results/fused-<cpu|cuda>.json, from which tools/render_docs.py makes docs/reference/benchmarks.md.

    python benchmarks/hydra_speed.py [--arch vit_base_patch16_224,bert-base] [--batch 1,4,16,64] [--dtype float32,bfloat16]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from launched import launches
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.families import family_of
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.measuring.cost import InTurn, interleaved, machine, macs, parameters, peak_bytes
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.torch_tensors import to_raw, to_tensor

RESULTS = Path(__file__).parent / "results"
MEMBERS = 3
BERT = "bert-base"


def members(backbone: Path, *, first: int, tuned: bool, folder: Path) -> list[Path]:
    """Write three prunings that keep two thirds of the heads, with the first `first` layers
    untouched.

    `tuned` members differ in everything but the layers before `first`, as after separate finetuning.
    """
    manifest = open_checkpoint(backbone).manifest
    ((tower, size),) = manifest.towers.items()
    paths = []
    for i in range(MEMBERS):
        generator = torch.Generator().manual_seed(i)
        rows = [
            list(range(size.heads))
            if layer < first
            else sorted(
                torch.randperm(size.heads, generator=generator)[: 2 * size.heads // 3].tolist()
            )
            for layer in range(size.layers)
        ]
        mask = folder / "mask.json"
        mask.write_text(json.dumps({tower: rows}))
        path = folder / f"first{first}-{'tuned' if tuned else 'free'}-{i}.safetensors"
        hs.prune(backbone, mask=mask, out=path, force=True)
        if tuned:
            perturb(path, first=first, seed=i)
        paths.append(path)
    return paths


def perturb(path: Path, *, first: int, seed: int) -> None:
    """Add noise to what finetuning with a frozen trunk would change."""
    opened = open_checkpoint(path)
    generator = torch.Generator().manual_seed(seed)

    def planned(name: str) -> Planned:
        info = opened.tensors[name]
        raw = opened.tensors.read(name)
        weight = opened.weights[name]
        before = weight.part == "embedding" if weight.layer is None else weight.layer < first
        frozen = first > 0 and before
        if not frozen:
            tensor = to_tensor(raw, info.dtype)
            noise = 1e-3 * torch.randn(tensor.shape, generator=generator)
            raw = to_raw(tensor + noise)[0]
        return Planned(name, info.dtype, info.shape, lambda: [raw])

    plans = [planned(name) for name in opened.tensors]
    save(path, plans, lambda sha256: rewritten(opened.manifest, weights_sha256=sha256))


def stock(model: Classifier) -> nn.Module:
    """Return the library's own module."""
    inner = getattr(model.module, "model", model.module)
    assert isinstance(inner, nn.Module)
    return inner


class Vmapped(nn.Module):
    """torch.func: stacked parameters, one vmapped call."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.base = [models[0]]  # in a list: its own weights are not part of this model
        state = torch.func.stack_module_state(list(models))[0]
        self.state = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(p.detach()) for name, p in state.items()}
        )

    def forward(self, inputs: Any) -> torch.Tensor:
        how = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
        state = {name.replace("/", "."): p for name, p in self.state.items()}

        def run(member_state: dict[str, torch.Tensor]) -> torch.Tensor:
            outputs = torch.func.functional_call(self.base[0], member_state, *how)
            return outputs if isinstance(outputs, torch.Tensor) else outputs.logits

        return torch.func.vmap(run, randomness="same")(state)


class Packed(nn.Module):
    """torch-uncertainty's packed layers: three full-width encoders in one (they cannot drop heads).

    The embedding of the single model runs once and is repeated over the members' channels.
    """

    def __init__(self, single: Classifier) -> None:
        from torch_uncertainty.layers import PackedLinear, PackedTransformerEncoderLayer

        super().__init__()
        model = single.manifest.model
        ((_, size),) = single.manifest.towers.items()
        anatomy = family_of(model).anatomy(single.module)
        self.embed = [anatomy.embed]
        self.kept = nn.ParameterList(
            p
            for part in anatomy.embed_parts
            for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())
        )
        packed = {"alpha": MEMBERS, "num_estimators": MEMBERS}
        self.layers = nn.ModuleList(
            PackedTransformerEncoderLayer(
                d_model=size.dim,
                nhead=size.heads,
                dim_feedforward=4 * size.dim,
                dropout=0.0,
                activation=nn.functional.gelu,
                batch_first=True,
                norm_first=anatomy.blocks[0].prenorm,
                **packed,
            )
            for _ in range(size.layers)
        )
        self.classifier = PackedLinear(size.dim, model.num_classes, **packed)

    def forward(self, inputs: Any) -> torch.Tensor:
        hidden = self.embed[0](inputs).hidden.repeat(1, 1, MEMBERS)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.classifier(hidden[:, 0])
        return logits


def random_backbone(arch: str, folder: Path) -> Path:
    """Write a classifier of this shape with random weights."""
    if arch != BERT:
        import timm
        from timm.models import save_for_hf

        torch.manual_seed(0)
        save_for_hf(timm.create_model(arch), str(folder / arch), safe_serialization=True)
        return folder / arch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig()).save_pretrained(folder / BERT)  # of two classes
    return folder / BERT


def contenders(arch: str, folder: Path) -> dict[str, Callable[[], nn.Module]]:
    """Name → how to load it, so that only one dtype's worth of weights is in memory."""
    backbone = random_backbone(arch, folder)
    depth = next(iter(open_checkpoint(backbone).manifest.towers.values())).layers
    loaders: dict[str, Callable[[], nn.Module]] = {"single": lambda: hs.load(backbone)}
    member_paths = {}
    for name, first, tuned in (
        ("tuned", 0, True),
        ("training-free", 0, False),
        (f"tuned, trunk {depth // 2}", depth // 2, True),
        (f"tuned, trunk {3 * depth // 4}", 3 * depth // 4, True),
    ):
        member_paths[name] = members(backbone, first=first, tuned=tuned, folder=folder)
        fused = folder / f"hydra-{len(member_paths)}.safetensors"
        hs.fuse(member_paths[name], out=fused)
        loaders[f"hydra, {name}"] = partial(hs.load, fused)
    parts = member_paths["tuned"]
    loaders["members in sequence"] = lambda: InTurn([hs.load(p) for p in parts])
    loaders["Deep Ensemble in sequence"] = lambda: InTurn(
        [hs.load(backbone) for _ in range(MEMBERS)]
    )
    loaders["torch.func.vmap of the members"] = lambda: Vmapped([stock(hs.load(p)) for p in parts])
    loaders["torch-uncertainty's packed layers"] = lambda: Packed(hs.load(backbone))
    return loaders


def measure(
    arch: str, batches: list[int], dtypes: list[str], runs: int, device: str, only: str | None
) -> list[dict[str, Any]]:
    """Return one row for each contender, batch size and dtype."""
    where = torch.device(device)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        ways = contenders(arch, Path(name))
        ways = {
            k: v for k, v in ways.items() if only is None or k == "single" or re.search(only, k)
        }
        sizes: dict[str, tuple[int, int, int]] = {}
        for dtype in dtypes:
            precision = getattr(torch, dtype)
            models = {k: make().to(where, precision).eval() for k, make in ways.items()}
            single = models["single"]
            assert isinstance(single, Classifier)
            facts = single.manifest.model
            example = partial(family_of(facts).example, facts, device=where, dtype=precision)
            if not sizes:
                one = example(1)
                # A vmapped call hides its operations from the counters.
                sizes = {
                    k: (
                        parameters(m),
                        *((0, 0) if isinstance(m, Vmapped) else (macs(m, one), launches(m, one))),
                    )
                    for k, m in models.items()
                }
            for batch in batches:
                inputs = example(batch)
                passes = {k: partial(m, inputs) for k, m in models.items()}
                peaks = {k: peak_bytes(m, passes[k]) for k, m in models.items()}
                seconds = interleaved(passes, runs=runs)
                for k, median in seconds.items():
                    params, products, calls = sizes[k]
                    rows.append(
                        {
                            "contender": k,
                            "batch": batch,
                            "dtype": dtype,
                            "runs": runs,
                            "ms": 1000 * median,
                            "ratio": median / seconds["single"],
                            "macs_ratio": products / sizes["single"][1] or None,
                            "launches_ratio": calls / sizes["single"][2] or None,
                            "params_ratio": params / sizes["single"][0],
                            "peak_mb": peaks[k] / 1e6,
                        }
                    )
                    print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default=f"vit_base_patch16_224,{BERT}")
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", help="contenders whose name this regular expression finds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"fused-{options.device}.json"
    for arch in options.arch.split(","):
        rows = measure(
            arch,
            [int(b) for b in options.batch.split(",")],
            options.dtype.split(","),
            options.runs,
            options.device,
            options.only,
        )
        stored = json.loads(path.read_text()) if path.exists() else {"results": {}}
        stored["machine"] = machine(torch.device(options.device))
        # Ratios refer to the single model of their own run: a run replaces all of the points at its sizes.
        measured = {(r["batch"], r["dtype"]) for r in rows}
        kept = [
            r for r in stored["results"].get(arch, []) if (r["batch"], r["dtype"]) not in measured
        ]
        stored["results"][arch] = kept + rows
        path.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
