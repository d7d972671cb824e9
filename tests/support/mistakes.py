"""Mistakes that users make: each with the command, the files it meets and the exit code; docs/reference/errors.md is made from
them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import os
import re
import shlex
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

CODES = {
    1: "a check that was asked for failed",
    2: "the command line, or an output",
    3: "a checkpoint or its manifest",
    4: "heads or members that cannot be cut or fused",
    5: "data",
    6: "an optional package",
}
ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,num_heads=4"


@dataclass(frozen=True)
class Mistake:
    what: str
    line: str
    """The command as it is typed, in a folder with what `scene` makes."""
    code: int
    make: Callable[[Path], object] = bool
    """What else lies in the folder, or is done to it."""
    without: tuple[str, ...] = ()
    """Packages that are not installed."""
    theirs: bool = False
    """The message holds words of a library, which differ between its versions."""


@dataclass(frozen=True)
class Outcome:
    code: int
    message: str
    left: list[str]
    """Files that the command left behind, or changed."""


def scene(folder: Path) -> None:
    """A backbone, two members and their hydra, another backbone, data."""
    import hydrasurgeon as hs

    random_weights(folder / "vit")
    random_weights(folder / "small", depth=2)
    for seed, name in enumerate("ab"):
        hs.prune(folder / "vit", method="random", keep=2, seed=seed, out=folder / name)
    hs.fuse([folder / "a", folder / "b"], out=folder / "hydra")
    images(folder / "data.npz", classes=5)


def paired(folder: Path, **without: tuple[int, ...] | None) -> None:
    """Two members with low-rank changes, and one of them with another half: of this shape, or none."""
    from low_rank import reshaped, with_changes

    for seed, name in enumerate("ab"):
        with_changes(folder / f"{name}.safetensors", folder / f"{name}2.safetensors", seed=seed)
    for half, shape in without.items():
        reshaped(folder / "a2.safetensors", f"blocks.0.attn.qkv.weight.{half}", shape)


def spoiled(folder: Path) -> None:
    """The backbone with NaN in one tensor."""
    from edited import edited

    edited(
        folder / "vit.safetensors",
        folder / "spoiled.safetensors",
        lambda name, tensor: tensor * (math.nan if name == "norm.bias" else 1),
    )


def random_weights(path: Path, *, depth: int = 3, classes: int = 5) -> None:
    from hydrasurgeon.tuning.start import fresh

    fresh(f"init:{ARCH},depth={depth},num_classes={classes}", path, seed=0)


def images(path: Path, *, classes: int, labels: bool = True, rows: int = 20) -> None:
    truth = np.arange(rows) % classes
    pixels = np.zeros((rows, 28, 28), np.uint8)
    for i, label in enumerate(truth):
        pixels[i, 5 * label : 5 * label + 5] = 220
    np.savez(path, images=pixels, **({"labels": truth} if labels else {}))


def predictions(path: Path, **change: np.ndarray | None) -> None:
    from safetensors.numpy import save_file

    logits = np.eye(4, dtype=np.float32)[np.arange(8) % 4][:, None]
    tensors = {"logits": logits, "labels": np.arange(8) % 4} | change
    save_file({name: values for name, values in tensors.items() if values is not None}, path)


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def folder_of(name: str, contents: dict[str, str] | None = None) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).mkdir()
        for file, content in (contents or {}).items():
            (folder / name / file).parent.mkdir(exist_ok=True)
            (folder / name / file).write_text(content, encoding="utf-8")

    return make


def sidecar(change: Callable[[dict], object], name: str = "vit") -> Callable[[Path], object]:
    """The manifest beside `name`, changed."""

    def make(folder: Path) -> None:
        path = folder / f"{name}.heads.json"
        manifest = json.loads(path.read_text(encoding="utf-8"))
        change(manifest)
        path.write_text(json.dumps(manifest), encoding="utf-8")

    return make


def various(folder: Path, *, classes: int = 5, rows: int = 200) -> None:
    """Validation data whose images all differ."""
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 28, 28), dtype=np.uint8)
    np.savez(folder / "val.npz", images=pixels, labels=np.arange(rows) % classes)


def decided(folder: Path, score: str = "msp") -> Path:
    """The backbone with a decision state, as `ready`; its manifest."""
    import hydrasurgeon as hs

    various(folder)
    data = str(folder / "val.npz")
    hs.calibrate(folder / "vit", data=data, ood_score=score, out=folder / "ready", device="cpu")
    return folder / "ready.heads.json"


def other_cascade(folder: Path) -> None:
    """A hydra of two members whose record speaks of three."""
    import hydrasurgeon as hs

    various(folder)
    data = str(folder / "val.npz")
    hs.calibrate(
        folder / "hydra", data=data, ood_score="msp", cascade=True, max_drop=100, out=folder / "ready", device="cpu"
    )
    sidecar(lambda m: m["decision"]["cascade"].update(order=[0, 1, 2], steps=[1, 3]), "ready")(folder)


def built(folder: Path) -> None:
    """What a build keeps its work in, as `work`."""
    import hydrasurgeon as hs

    data, val = (str(folder / f"{name}.npz") for name in ("data", "val"))
    hs.build(
        folder / "vit",
        data=data,
        val=val,
        criteria="magnitude",
        candidates=2,
        calibrate=False,
        dry_run=True,
        cache=folder / "work",
        out=folder / "h",
        device="cpu",
    )


def loud(folder: Path) -> None:
    """The backbone with a classifier whose products have no float32."""
    from edited import edited

    various(folder)
    edited(
        folder / "vit.safetensors",
        folder / "loud.safetensors",
        lambda name, tensor: tensor * (1e38 if name == "head.weight" else 1e20 if name.startswith("norm.") else 1),
    )


def bent(folder: Path, path: Path | None = None) -> None:
    """One bit of one weight."""
    path = path or folder / "hydra.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def header(entries: dict[str, object], data: bytes = b"") -> bytes:
    content = json.dumps(entries).encode()
    return struct.pack("<Q", len(content)) + content + data


def bare(name: str, shapes: dict[str, tuple[int, ...]]) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        from safetensors.numpy import save_file

        tensors = {tensor: np.zeros(shape, np.float32) for tensor, shape in shapes.items()}
        save_file(tensors, folder / f"{name}.safetensors")

    return make


def bert(folder: Path, **config: object) -> None:
    from tiny_families import FAMILIES

    FAMILIES["BERT"].write(folder / "bert")
    if config:
        path = folder / "bert" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))


def dinov2(folder: Path) -> None:
    from tiny_families import FAMILIES

    FAMILIES["DINOv2"].write(folder / "dinov2")


def clip(folder: Path) -> None:
    from tiny_families import FAMILIES

    FAMILIES["OpenCLIP"].write(folder / "clip")
    (folder / "clip" / "heads.json").unlink()


def tuned(folder: Path) -> None:
    """Two members whose MLPs differ: their mean is another function."""
    import hydrasurgeon as hs

    for seed, name in enumerate("ab"):
        hs.finetune(
            folder / name,
            data=str(folder / "data.npz"),
            recipe="demo",
            set={"epochs": "2", "lr": "0.01", "batch_size": "8"},
            seed=seed,
            out=folder / f"{name}2",
            device="cpu",
        )


def ordered(folder: Path) -> None:
    """A removal order of three heads."""
    import hydrasurgeon as hs

    hs.score(folder / "vit", method="circuit", objective="acc", data=str(folder / "data.npz"), remove=3, device="cpu")


def other_rows(folder: Path) -> None:
    images(folder / "data.npz", classes=5, rows=30)


MISTAKES = (
    # 1: checks
    Mistake("Averaged MLPs are not the members", "fuse a2 b2 -o h --check data.npz --tolerance 1e-9", 1, tuned),
    Mistake("A figure beyond its limit", 'eval vit --data data.npz --assert "id.n>=100"', 1),
    Mistake(
        "Several, on several models",
        'eval --predictions-in p.safetensors --predictions-in q.safetensors --assert "id.accuracy>0.9" --assert'
        ' "p:members==3" --assert "id.ece<=1"',
        1,
        lambda f: (predictions(f / "p.safetensors"), predictions(f / "q.safetensors", labels=np.arange(8) // 2)),
    ),
    Mistake("A bit of a tensor was changed", "verify hydra", 1, bent),
    # 2: the command line
    Mistake("No such command", "prun vit", 2, theirs=True),
    Mistake("No such option", "inspect vit --jsn", 2, theirs=True),
    Mistake("An option without its value", "prune vit --keep", 2, theirs=True),
    Mistake("A checkpoint is missing", "inspect", 2, theirs=True),
    Mistake("A number is wanted", "eval vit --data data.npz --limit many", 2),
    Mistake("A criterion that needs data", "score --method taylor vit", 2),
    Mistake("A criterion misspelt", "prune --method rnadom --keep 2 vit", 2),
    Mistake("No scores yet", "prune --method taylor --keep 2 vit", 2),
    Mistake("No number of heads", "prune --method random vit", 2),
    Mistake("Two numbers of heads", "prune --method random --keep 2 --remove 3 vit", 2),
    Mistake("Heads to keep that are no number", "prune --method random --keep two vit", 2),
    Mistake("A criterion without a number of its own", "prune --method random --keep auto vit", 2),
    Mistake("A sample without what it is drawn from", "prune --method random --sample 3 vit", 2),
    Mistake("An order that ends before", "prune --method circuit --objective acc --remove 5 vit -o m", 4, ordered),
    Mistake("Layers that the model has not", "prune --method random --keep 2 --layers 9-12 vit", 4),
    Mistake("A tower that the model has not", "prune --method random --keep 2 --tower text vit", 4),
    Mistake("Heads rearranged by what knows them one by one", "prune --method random --keep 2 --rearrange vit", 2),
    Mistake("A repair misspelt", "prune --method random --keep 2 vit --compensate men", 2),
    Mistake("A repair without data", "prune --method random --keep 2 vit --compensate mean", 2),
    Mistake("A mask that is not there", "prune --mask gone.json vit", 2),
    Mistake("An objective that is none", "score --method circuit --objective odd --data data.npz vit", 2),
    Mistake("A search that is none", "score --method circuit --objective acc --search fats --data data.npz vit", 2),
    Mistake(
        "A refinement misspelt", "score --method circuit --objective acc --refine swaps --keep 2 --data data.npz vit", 2
    ),
    Mistake(
        "A refinement for no amount", "score --method circuit --objective acc --refine swap --data data.npz vit", 2
    ),
    Mistake("Resamples of scores", "score --method taylor --bootstrap 10 --data data.npz vit", 2),
    Mistake("One resample", "score --method circuit --objective acc --bootstrap 1 --keep 2 --data data.npz vit", 2),
    Mistake(
        "An OOD score that no circuit can have",
        "score --method circuit --objective ood --ood-score mds --data data.npz --ood data.npz vit",
        2,
    ),
    Mistake("An objective without foreign data", "score --method circuit --objective ood --data data.npz vit", 2),
    Mistake("An output that is there", "prune --method random --keep 2 vit -o a", 2),
    Mistake("An output in no folder", "prune --method random --keep 2 vit -o nowhere/a", 2),
    Mistake("An output over an input", "prune --method random --keep 2 vit -o vit --force", 2),
    Mistake("A report over another file", "eval vit --data data.npz --json data.npz", 2),
    Mistake("Predictions over the checkpoint", "eval vit --data data.npz --predictions vit.safetensors --force", 2),
    Mistake("One member", "fuse a -o h", 2),
    Mistake("MLPs that are neither", "fuse a b -o h --mlp mean", 2),
    Mistake("A weight too few", "fuse a b -o h --weights 1", 2),
    Mistake("Members' weights that are no numbers", "fuse a b -o h --weights 1:2", 2),
    Mistake("A member that is not to count", "fuse a b -o h --weights 1,0", 2),
    Mistake("Samples to compare a hydra on, and none", "fuse a b -o h --limit 100", 2),
    Mistake("A tolerance below zero", "fuse a b -o h --check data.npz --tolerance -1", 2),
    Mistake("Low-rank changes for other libraries", "calibrate a2 --data data.npz -o folder/", 2, paired),
    Mistake("A recipe misspelt", "finetune vit --data data.npz --recipe imagnet -o t", 2),
    Mistake(
        "A recipe whose package is not there", "finetune vit --data data.npz --recipe lora -o t", 6, without=("peft",)
    ),
    Mistake("A field without a value", "finetune vit --data data.npz --recipe demo --set lr -o t", 2),
    Mistake("A field that no recipe has", "finetune vit --data data.npz --recipe demo --set learning_rate=1 -o t", 2),
    Mistake("A field out of its range", "finetune vit --data data.npz --recipe demo --set steps=0 -o t", 2),
    Mistake("A part that cannot be frozen", "finetune vit --data data.npz --recipe demo --freeze heads -o t", 2),
    Mistake("Random weights of another family", "finetune init:hf:bert --data data.npz --recipe scratch -o t", 2),
    Mistake("Nothing to evaluate", "eval --data data.npz", 2),
    Mistake("Nothing to evaluate on", "eval vit", 2),
    Mistake("An ensemble of one", "eval vit --data data.npz --ensemble", 2),
    Mistake("Dropout of a model without", "eval vit --data data.npz --mc-dropout 5", 4),
    Mistake(
        "Dropout of stored predictions",
        "eval --predictions-in p.safetensors --mc-dropout 5",
        2,
        lambda f: predictions(f / "p.safetensors"),
    ),
    Mistake(
        "Logits to be written of no model",
        "eval --predictions-in p.safetensors --predictions q.safetensors",
        2,
        lambda f: predictions(f / "p.safetensors"),
    ),
    Mistake(
        "Dropout for layers that have none",
        "finetune dinov2 --data data.npz --recipe demo --set classifier=fresh --set dropout=0.1 -o t",
        4,
        dinov2,
    ),
    Mistake("Dropout of a hydra", "eval hydra --data data.npz --mc-dropout 5", 4),
    Mistake("One file for two models' logits", "eval vit a --data data.npz --predictions p.safetensors", 2),
    Mistake("A temperature to fit on nothing", "eval vit --data data.npz --temperature fit", 2),
    Mistake("A temperature below zero", "eval vit --data data.npz --temperature -1", 2),
    Mistake("An OOD score misspelt", "eval vit --data data.npz --ood-score entrpy", 2),
    Mistake("An OOD score that nobody fitted", "eval vit --data data.npz --ood-score rmds", 2),
    Mistake("A coverage of everything", "calibrate vit --data data.npz --coverage 1 -o c", 2),
    Mistake("A budget that is none", "build vit --data data.npz --val gone.npz --budget fast -o h", 2),
    Mistake(
        "Members chosen by foreign data that are not given",
        "build vit --data data.npz --val gone.npz --objective avg -o h",
        2,
    ),
    Mistake("Weights that are not to be fitted", "build vit --data data.npz --val gone.npz --weights 2,1 -o h", 2),
    Mistake("Neither so many members nor auto", "build vit --data data.npz --val gone.npz --members many -o h", 2),
    Mistake(
        "A budget that no candidate is within",
        "build vit --data data.npz --val val.npz --criteria magnitude --budget macs=0.1 -o h",
        4,
        various,
    ),
    Mistake("A search of circuits misspelt", "build vit --data data.npz --val gone.npz --search fats -o h", 2),
    Mistake(
        "Candidates by a criterion that is none", "build vit --data data.npz --val gone.npz --criteria tailor -o h", 2
    ),
    Mistake(
        "More members than candidates",
        "build vit --data data.npz --val val.npz --criteria magnitude --candidates 2 --members 5 -o h",
        2,
        various,
    ),
    Mistake(
        "Another build's work folder",
        "build vit --data data.npz --val val.npz --criteria magnitude --cache work -o h",
        2,
        lambda f: (various(f), built(f), various(f, rows=100)),
    ),
    Mistake(
        "Another model's scores in the work folder",
        "build vit --data data.npz --val val.npz --criteria magnitude --candidates 2 --no-calibrate --device cpu"
        " --cache work -o h",
        3,
        lambda f: (
            various(f),
            built(f),
            [shutil.copy(f / f"small{end}", f / "work" / f"scored{end}") for end in (".safetensors", ".heads.json")],
        ),
    ),
    Mistake(
        "Members to be tuned on data without labels",
        "build vit --data bare.npz --val data.npz --tune demo -o h",
        5,
        lambda f: images(f / "bare.npz", classes=5, labels=False),
    ),
    Mistake(
        "Members chosen by foreign data that they are tuned on",
        "build vit --data data.npz --val val.npz --ood data.npz -o h",
        5,
        various,
    ),
    Mistake("Members chosen by what they are tuned on", "build vit --data data.npz --val data.npz -o h", 5),
    Mistake("Members that disagree, of a model without", "calibrate vit --data data.npz --ood-score mi -o c", 2),
    Mistake("A score of class names for a model without", "calibrate vit --data data.npz --ood-score mcm -o c", 2),
    Mistake("How sure to be, and of nothing", "calibrate vit --data data.npz --delta 0.1 -o c", 2),
    Mistake("A cascade of one model", "calibrate vit --data data.npz --cascade -o c", 2),
    Mistake("A drop without a cascade", "calibrate hydra --data data.npz --max-drop 1 -o c", 2),
    Mistake("A drop and a budget", "calibrate hydra --data data.npz --cascade --max-drop 1 --budget 1.2 -o c", 2),
    Mistake("A drop below nothing", "calibrate hydra --data data.npz --cascade --max-drop -1 -o c", 2),
    Mistake(
        "A budget that buys no member",
        "calibrate hydra --data val.npz --ood-score msp --cascade --budget 0.1 -o c",
        2,
        various,
    ),
    Mistake("An ensemble in a cascade", "eval a b --ensemble --cascade --data data.npz", 2),
    Mistake("A cascade to be timed on nothing", "bench hydra --cascade", 2),
    Mistake("A cascade to be compiled", "bench hydra --cascade --data data.npz --compile", 2),
    Mistake("A calibration over its own checkpoint", "calibrate vit --data data.npz -o vit --force", 2),
    Mistake("Answers that are there", "predict vit --data data.npz -o a.jsonl", 2, text("a.jsonl", "")),
    Mistake("Answers in a folder that is not there", "predict vit --data data.npz -o gone/a.jsonl", 2),
    Mistake("A shard beyond the last", "predict vit --data data.npz --shard 3/2", 2),
    Mistake("Answers in a format that there is not", "predict vit --data data.npz -o answers.xlsx", 2),
    Mistake("An OOD set without a name", "eval vit --data data.npz --ood near:=data.npz", 2),
    Mistake("A severity that is no number", "eval vit --data data.npz --shift fog:much=data.npz", 2),
    Mistake("A severity beyond the last", "eval vit --data data.npz --shift camera:9=data.npz", 2),
    Mistake("A corruption misspelt", "eval vit --data data.npz --corrupt gausian_noise", 2),
    Mistake("A severity that there is not", "eval vit --data data.npz --corrupt fog:6", 2),
    Mistake("A corruption of texts for images", "eval vit --data data.npz --corrupt typos", 2),
    Mistake(
        "One name for a corruption and a shift", "eval vit --data data.npz --corrupt fog:1 --shift fog:1=data.npz", 2
    ),
    Mistake("One name for two data sets", "eval vit --data x=data.npz --data x=data.npz", 2),
    Mistake("One name for two OOD sets", "eval vit --data data.npz --ood near:x=data.npz --ood far:x=data.npz", 2),
    Mistake("An assertion that is none", 'eval vit --data data.npz --assert "id.ece=0.1"', 2),
    Mistake("An assertion about no number of the report", 'eval vit --data data.npz --assert "id.acuracy>=0.9"', 2),
    Mistake("An assertion about no model in the report", 'eval vit --data data.npz --assert "hydra:id.ece<=0.1"', 2),
    Mistake("No class names", "eval clip --data data.npz", 2, clip),
    Mistake("No model card to write into", "eval vit --data data.npz --card", 2),
    Mistake("A model card to push that is not written", "eval vit --data data.npz --push-to-hub me/vit", 2),
    Mistake("A device that is none", "eval vit --data data.npz --device tpu", 2),
    Mistake("A precision that is none", "eval vit --data data.npz --dtype float65", 2),
    Mistake("A batch size that is none", "eval vit --data data.npz --batch-size many", 2),
    Mistake("No runs", "bench vit --runs 0", 2),
    Mistake("The same model twice", "bench vit vit", 2),
    Mistake("Batch sizes that are none", "bench vit --batch 1,many", 2),
    Mistake("Nothing to probe on", "probe vit", 2),
    Mistake("Two kinds of noisy data", "probe vit --data data.npz --corrupt fog --shift data.npz", 2),
    Mistake("Second derivatives in half precision", "probe vit --data data.npz --dtype bfloat16", 2),
    Mistake("A circuit that nobody searched", "probe vit --data data.npz --method circuit-ood", 2),
    Mistake("A picture of scores that are not there", "inspect vit --plot p.svg", 2),
    Mistake("A picture of another kind", "bench vit --plot p.pdf", 2),
    Mistake("A hydra has several selections", "compare hydra a", 2),
    Mistake("A member that it has not", "compare hydra#7 a", 2),
    Mistake("A format that is not written", "export vit --format tflite", 2),
    Mistake("A compiled graph of another format", "export vit --aot", 2),
    Mistake("Two graphs of what has no cascade", "export hydra --cascade", 3),
    Mistake("Eight bits without data to try them on", "export vit --int8", 2),
    Mistake("Foreign data to try a graph on, and no other", "export vit --ood data.npz", 2),
    Mistake("Samples to try a graph on, and none", "export vit --limit 100", 2),
    Mistake("A padded model tried on data", "export a --format padded --check data.npz", 2),
    Mistake("Zeros put back into a hydra", "export hydra --format padded", 2),
    Mistake("A member of what has none", "export a --format padded --member 1", 2),
    Mistake("A precision that proves nothing", "verify vit --dtype float16", 2),
    Mistake("A script of what was run already", "replay a --from . --shell", 2),
    Mistake("A folder that is not empty", "demo -o full", 2, folder_of("full", {"notes.txt": "mine"})),
    # 3: checkpoints
    Mistake("No such checkpoint", "inspect gone", 3),
    Mistake("Not a checkpoint", "inspect notes", 3, text("notes.safetensors", "hello, I am not a checkpoint")),
    Mistake("An empty file", "inspect none", 3, text("none.safetensors", "")),
    Mistake("A file that was cut off", "inspect vit", 3, lambda f: os.truncate(f / "vit.safetensors", 60_000)),
    Mistake(
        "A header that is cut off",
        "inspect half",
        3,
        lambda f: (f / "half.safetensors").write_bytes(struct.pack("<Q", 4096) + b"{}"),
    ),
    Mistake(
        "A tensor with too few bytes",
        "inspect thin",
        3,
        lambda f: (f / "thin.safetensors").write_bytes(
            header({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, bytes(8))
        ),
    ),
    Mistake(
        "A tensor twice",
        "inspect two",
        3,
        lambda f: (f / "two.safetensors").write_bytes(struct.pack("<Q", 18) + b'{"w": {}, "w": {}}'),
    ),
    Mistake("A folder without a checkpoint", "inspect empty", 3, folder_of("empty")),
    Mistake("A pickled checkpoint", "inspect old", 3, folder_of("old", {"config.json": "{}", "pytorch_model.bin": ""})),
    Mistake("An architecture that cannot be told", "inspect odd", 3, bare("odd", {"encoder.weight": (4, 4)})),
    Mistake(
        "An architecture that is not known",
        "inspect odd --arch timm:vit_nope",
        4,
        bare("odd", {"encoder.weight": (4, 4)}),
    ),
    Mistake(
        "A shard outside of the folder",
        "inspect shards",
        3,
        folder_of(
            "shards",
            {
                "config.json": '{"architecture": "vit_tiny_patch16_224", "num_classes": 5}',
                "model.safetensors.index.json": '{"weight_map": {"w": "../vit.safetensors"}}',
            },
        ),
    ),
    Mistake("Weights that are no numbers", "prune spoiled --method random --keep 2 -o m", 3, spoiled),
    Mistake("Half of a low-rank change", "inspect a2", 3, lambda f: paired(f, lora_a=None)),
    Mistake("A low-rank change of two ranks", "fuse a2 b2 -o h", 3, lambda f: paired(f, lora_a=(3, 32))),
    Mistake(
        "The state of an interrupted training, damaged",
        "finetune vit --data data.npz --recipe demo -o t --resume",
        3,
        lambda f: (f / "t.training.safetensors").write_bytes(b"x"),
    ),
    Mistake(
        "The state of an interrupted search, damaged",
        "score vit --method circuit --objective acc --remove 2 --data data.npz --device cpu",
        3,
        text(
            "vit.circuit-acc.search.json",
            '{"hydrasurgeon.state": "hydrasurgeon.search/3", "identity": "{}", "position": "{}", "sha256": "0"}',
        ),
    ),
    Mistake(
        "A work folder of an older version",
        "build vit --data data.npz --val val.npz --criteria magnitude --cache work -o h",
        3,
        lambda f: (
            various(f),
            folder_of(
                "work",
                {
                    "build.json": (
                        '{"hydrasurgeon.state": "hydrasurgeon.build-state/1", "identity": "{}", "position": "{}",'
                        ' "sha256": "0"}'
                    )
                },
            )(f),
        ),
    ),
    Mistake("A manifest of other weights", "eval hydra --data data.npz", 3, bent),
    Mistake(
        "Two manifests that disagree", "inspect vit", 3, sidecar(lambda m: m["model"].update(labels=list("vwxyz")))
    ),
    Mistake("A manifest that is not JSON", "inspect vit", 3, text("vit.heads.json", '{"format": ')),
    Mistake(
        "A manifest of a later version", "inspect vit", 3, sidecar(lambda m: m.update(format="hydrasurgeon.manifest/3"))
    ),
    Mistake("A manifest with a key of somebody's", "inspect vit", 3, sidecar(lambda m: m.update(notes="ours"))),
    Mistake(
        "Heads that the model has not",
        "compare odd.heads.json a",
        3,
        text(
            "odd.heads.json",
            json.dumps(
                {
                    "format": "hydrasurgeon.manifest/1",
                    "kind": "member",
                    "model": {"family": "timm", "arch": "vit_tiny_patch16_224", "num_classes": 5},
                    "towers": {"vision": {"layers": 1, "heads": 4, "head_dim": 8, "dim": 32}},
                    "kept": {"vision": [[1, 9]]},
                    "weights_sha256": "0" * 64,
                }
            ),
        ),
    ),
    Mistake(
        "A text model without its tokenizer",
        "score --method taylor --data texts.jsonl bert",
        3,
        lambda f: (
            bert(f),
            (f / "bert" / "tokenizer.json").unlink(),
            (f / "bert" / "tokenizer_config.json").unlink(),
            text("texts.jsonl", '{"text": "good", "label": 0}\n')(f),
        ),
    ),
    Mistake("A name that is none of the hub's", "inspect hf:a/b/c", 3),
    Mistake(
        "Another checkpoint's decision state",
        "predict vit --data data.npz",
        3,
        lambda f: shutil.copy(decided(f), f / "vit.heads.json"),
    ),
    Mistake(
        "A decision state that somebody changed",
        "predict ready --data data.npz",
        3,
        lambda f: bent(f, decided(f, "mds").with_name("ready.safetensors")),
    ),
    Mistake("A cascade that nobody fitted", "eval hydra --cascade --data data.npz", 3),
    Mistake("Rows by a cascade that nobody fitted", "predict vit --cascade --data data.npz", 3),
    Mistake("Another hydra's cascade", "inspect ready", 3, other_cascade),
    Mistake("Logits that overflow", "calibrate loud --data val.npz -o c", 3, loud),
    # 4: surgery
    Mistake("A hydra cannot be probed", "probe hydra --data data.npz", 4),
    Mistake("More heads than there are", "prune --method random --keep 9 vit", 4),
    Mistake("No heads at all", "prune --method random --keep 0 vit", 4),
    Mistake("All heads removed", "prune --method random --remove 12 vit", 4),
    Mistake("A hydra cannot be pruned", "prune --method random --keep 1 hydra", 4),
    Mistake("Members of two backbones", "fuse a small -o h", 4),
    Mistake("A hydra cannot be a member", "fuse hydra a -o h", 4),
    Mistake("Heads that have nothing in common", "compare a small", 4),
    Mistake(
        "A decoder",
        "prune --method random --keep 2 bert -o m",
        4,
        lambda f: bert(f, model_type="gpt2", architectures=["GPT2LMHeadModel"]),
    ),
    Mistake(
        "Code of somebody's",
        "prune --method random --keep 2 bert -o m",
        4,
        lambda f: bert(f, auto_map={"AutoModel": "modeling.Mine"}),
    ),
    Mistake(
        "No transformer of heads", "inspect odd --arch timm:resnet50", 4, bare("odd", {"conv1.weight": (8, 3, 7, 7)})
    ),
    # 5: data
    Mistake("No such file", "eval vit --data dat.npz", 5),
    Mistake("No such kind of data", "eval vit --data table.xlsx", 5, text("table.xlsx", "x")),
    Mistake(
        "No images in it",
        "eval vit --data pixels.npz",
        5,
        lambda f: np.savez(f / "pixels.npz", pixels=np.zeros((3, 8, 8), np.uint8)),
    ),
    Mistake(
        "Images of floats",
        "eval vit --data f.npz",
        5,
        lambda f: np.savez(f / "f.npz", images=np.zeros((3, 8, 8)), labels=np.arange(3)),
    ),
    Mistake("Not an .npz file", "eval vit --data text.npz", 5, text("text.npz", "hello")),
    Mistake("Labels beyond the classes", "eval vit --data seven.npz", 5, lambda f: images(f / "seven.npz", classes=7)),
    Mistake("No labels", "eval vit --data bare.npz", 5, lambda f: images(f / "bare.npz", classes=5, labels=False)),
    Mistake(
        "Corruptions of data without labels",
        "eval vit --data bare.npz --corrupt all",
        5,
        lambda f: images(f / "bare.npz", classes=5, labels=False),
    ),
    Mistake(
        "Fewer samples than a head has dimensions", "probe vit --data data.npz --ood data.npz --limit 7 --device cpu", 5
    ),
    Mistake("An empty folder", "eval vit --data none", 5, folder_of("none")),
    Mistake(
        "A picture that is none",
        "eval vit --data folder",
        5,
        folder_of("folder", {f"{name}/x.png": "hello" for name in "abcde"}),
    ),
    Mistake(
        "A line that is not JSON",
        "eval vit --data d.jsonl",
        5,
        text("d.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "la'),
    ),
    Mistake("No column to read", "eval vit --data d.csv", 5, text("d.csv", "words,label\na,0\n")),
    Mistake(
        "Texts for a model of images",
        "eval vit --data d.jsonl",
        5,
        text("d.jsonl", '{"text": "good film", "label": 0}\n'),
    ),
    Mistake("A demo set misspelt", "eval vit --data demo:tets", 5),
    Mistake("A hub set without a split", "eval vit --data hf:cifar100", 5),
    Mistake("A slice of a hub set that is none", "eval vit --data hf:cifar100:test[3000]", 5),
    Mistake("A torchvision set misspelt", "eval vit --data torchvision:MINST:test", 5),
    Mistake("No samples", "eval vit --data data.npz --limit 0", 5),
    Mistake("Foreign data that is not there", "eval vit --data data.npz --ood near:far=gone.npz", 5),
    Mistake("Predictions that are not there", "eval --predictions-in gone.safetensors", 5),
    Mistake("Predictions that are none", "eval --predictions-in vit.safetensors", 5),
    Mistake(
        "Predictions about other samples",
        "eval --ensemble --predictions-in p.safetensors --predictions-in q.safetensors",
        5,
        lambda f: (predictions(f / "p.safetensors"), predictions(f / "q.safetensors", labels=np.arange(8) // 2)),
    ),
    Mistake("A promise that takes more samples", "calibrate vit --data data.npz --ood-score msp --risk 0.01 -o c", 5),
    Mistake(
        "Three validation samples",
        "calibrate vit --data three.npz -o c",
        5,
        lambda f: images(f / "three.npz", classes=3, rows=3),
    ),
    Mistake(
        "A coverage that takes more samples",
        "calibrate vit --data val.npz --ood-score msp --coverage 0.999 -o c",
        5,
        various,
    ),
    Mistake(
        "A threshold that takes more samples",
        "calibrate vit --data val.npz --ood-score msp --id-flagged 0.001 -o c",
        5,
        various,
    ),
    Mistake(
        "A risk that no threshold keeps", "calibrate vit --data val.npz --ood-score msp --risk 0.1 -o c", 5, various
    ),
    Mistake(
        "One class of five", "calibrate vit --data val.npz --ood-score mds -o c", 5, lambda f: various(f, classes=1)
    ),
    Mistake(
        "Labels beyond the model's classes", "calibrate vit --data val.npz -o c", 5, lambda f: various(f, classes=8)
    ),
    Mistake(
        "Samples that are all the same",
        "calibrate vit --data val.npz --ood-score rmds -o c",
        5,
        lambda f: np.savez(f / "val.npz", images=np.zeros((100, 28, 28), np.uint8), labels=np.arange(100) % 5),
    ),
    Mistake(
        "Neighbours that are too few",
        "calibrate vit --data val.npz --ood-score knn -o c",
        5,
        lambda f: various(f, rows=60),
    ),
    Mistake(
        "Training data that are the validation data", "calibrate vit --data val.npz --fit-data val.npz -o c", 5, various
    ),
    Mistake("Foreign data that are the validation data", "calibrate vit --data data.npz --ood data.npz -o c", 5),
    Mistake(
        "Predictions without labels",
        "eval --predictions-in p.safetensors",
        5,
        lambda f: predictions(f / "p.safetensors", labels=None),
    ),
    Mistake(
        "Predictions of other classes in one table",
        "eval vit --data data.npz --predictions-in p.safetensors",
        5,
        lambda f: predictions(f / "p.safetensors"),
    ),
    Mistake("A reference that no result is called", "eval vit a --data data.npz --html r.html --reference b", 2),
    Mistake("A reference without a report", "eval vit a --data data.npz --reference a", 2),
    Mistake("A report that is there already", "eval vit --data data.npz --html r.html", 2, text("r.html", "mine")),
    Mistake("Markdown in a file that ends as no Markdown does", "eval vit a --data data.npz --markdown r.html", 2),
    Mistake("A page and a table on one stream", "eval vit --data data.npz --html - --markdown -", 2),
    Mistake("A graph on stdout", "export vit -o -", 2),
    Mistake("Two results on one stream", "eval vit --data data.npz --json - --markdown -", 2),
    Mistake(
        "Predictions that are not finite",
        "eval --predictions-in p.safetensors",
        5,
        lambda f: predictions(f / "p.safetensors", logits=np.full((8, 1, 4), np.nan, np.float32)),
    ),
    Mistake(
        "Predictions without the score that is asked for",
        "eval --predictions-in p.safetensors --ood-score vilo",
        2,
        lambda f: predictions(f / "p.safetensors", **{"scores.vilu": np.zeros(8, np.float32)}),
    ),
    Mistake(
        "A score for other samples",
        "eval --predictions-in p.safetensors",
        5,
        lambda f: predictions(f / "p.safetensors", **{"scores.vilu": np.zeros(7, np.float32)}),
    ),
    Mistake(
        "Predictions with a label too high",
        "eval --predictions-in p.safetensors",
        5,
        lambda f: predictions(f / "p.safetensors", labels=np.arange(8)),
    ),
    Mistake(
        "Models of different classes",
        "eval vit ten --data data.npz",
        5,
        lambda f: random_weights(f / "ten", classes=10),
    ),
    # 6: packages
    Mistake("CAHP without its packages", "score --method cahp --data data.npz vit", 6, without=("kmedoids", "kneed")),
    Mistake("ONNX without its packages", "export vit", 6, without=("onnx", "onnxscript", "onnxruntime")),
    Mistake("A picture without matplotlib", "bench vit --plot p.svg", 6, without=("matplotlib",)),
    Mistake(
        "A front without matplotlib",
        "build vit --data data.npz --val gone.npz --plot front.png -o h",
        6,
        without=("matplotlib",),
    ),
    Mistake(
        "A heat map without matplotlib", "score --method magnitude vit -o h --plot p.svg", 6, without=("matplotlib",)
    ),
    Mistake(
        "A probe's picture without matplotlib", "probe vit --data data.npz --plot p.svg", 6, without=("matplotlib",)
    ),
    Mistake("A tracker without its package", "eval vit --data data.npz --log mlflow", 6, without=("mlflow",)),
    Mistake("A tracker misspelt", "eval vit --data data.npz --log wandbb", 2),
)


def run_mistake(mistake: Mistake, folder: Path) -> Outcome:
    """The command in this process, in a folder that `scene` was made in."""
    from hydrasurgeon.cli.app import run

    mistake.make(folder)
    before = _files(folder)
    err = io.StringIO()
    silent = contextlib.redirect_stdout(io.StringIO())
    # On a slow machine progress would be among what is said.
    patient = mock.patch("hydrasurgeon.render.bar.PLAIN_EVERY_SECONDS", math.inf)
    with _inside(folder), _lacking(mistake.without), patient, contextlib.redirect_stderr(err), silent:
        code = run(shlex.split(mistake.line))
    message = err.getvalue()
    after = _files(folder)
    left = [name for name in after if after[name] != before.get(name)]
    message = message.replace(f"{folder}/", "").replace(str(folder), ".")
    return Outcome(code, _without_figures(message), left)


KEPT = {"h.build", "work"}
"""Folders that a build keeps its scores in, to be used by the next one."""


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not KEPT & {*path.parts}
    }


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


@contextlib.contextmanager
def _lacking(packages: tuple[str, ...]) -> Iterator[None]:
    def find(name: str) -> object:
        return None if name in packages else importlib.util.find_spec(name)

    with mock.patch("hydrasurgeon.lookup.find_spec", find):
        yield


def _without_figures(message: str) -> str:
    """What random weights come to, and so their hashes, differs between versions of torch."""
    message = re.sub(r"\b[0-9a-f]{12}…", "0a1b2c…", message)
    return re.sub(r"\b\d+\.\d{2,}(?:e-\d+)?(?=[, ]+(?:on|KL|accuracy|%))", "0.…", message)


def block(mistake: Mistake, message: str) -> str:
    """Its place in docs/reference/errors.md."""
    return f"**{mistake.what}.** `hydrasurgeon {mistake.line}`\n\n```text\n{message.rstrip()}\n```\n"


def page(messages: list[str]) -> str:
    """docs/reference/errors.md."""
    parts = [HEAD.format(count=len(MISTAKES))]
    for code, about in CODES.items():
        parts.append(f"## Exit code {code}: {about}\n")
        parts += [block(m, said) for m, said in zip(MISTAKES, messages, strict=True) if m.code == code]
    return "\n".join(parts)


HEAD = """# What goes wrong, and what is said then

{count} mistakes. This page is written by `tools/render_errors.py` from the tests that make each of them (`tests/support/mistakes.py`);
they fail when a message or an exit code is another one than here. Each is made in a folder with a small ViT `vit`, two
members `a` and `b` of it, their hydra `hydra`, another backbone `small` and labelled images `data.npz`; `0.…` and `0a1b2c…`
stand for figures and hashes of random weights.

Messages go to stderr, and a mistake leaves no file behind; only what `fuse --check` finds wanting stays, to be looked at, and what a `build` has worked out, to be used again. Exit
code 0 is success, 130 and 143 follow SIGINT and SIGTERM. Anything with a traceback is a bug, and we would like to hear of it.
"""
