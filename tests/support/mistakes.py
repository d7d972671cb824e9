"""Mistakes that users make: each with its command, the files it meets and the exit code."""

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from any_labels import any_labels

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


def with_nan(folder: Path) -> None:
    """The backbone with NaN in one tensor."""
    from edited import edited

    edited(
        folder / "vit.safetensors",
        folder / "nan.safetensors",
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
    with any_labels():
        hs.calibrate(folder / "vit", data=data, ood_score=score, out=folder / "ready", device="cpu")
    return folder / "ready.heads.json"


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
        lambda name, tensor: (
            tensor * (1e38 if name == "head.weight" else 1e20 if name.startswith("norm.") else 1)
        ),
    )


def bent(folder: Path, path: Path | None = None) -> None:
    """One bit of one weight."""
    path = path or folder / "hydra.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


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


BUILD = "build vit --data data.npz --val data.npz --budget macs=1.5 -o x --plot"

MISTAKES = (
    Mistake(
        "Averaged MLPs change the answers",
        "fuse a2 b2 -o h --check data.npz --tolerance 1e-9",
        1,
        tuned,
    ),
    Mistake("A figure that breaks its limit", 'eval vit --data data.npz --assert "id.n>=100"', 1),
    Mistake("A bit of a tensor was changed", "verify hydra", 1, bent),
    Mistake("No such command", "prun vit", 2),
    Mistake("No such option", "inspect vit --jsn", 2),
    Mistake("A checkpoint is missing", "inspect", 2),
    Mistake("A word where a number is expected", "eval vit --data data.npz --limit many", 2),
    Mistake("A criterion that needs data", "score --method taylor vit", 2),
    Mistake("A criterion misspelt", "prune --method rnadom --keep 2 vit", 2),
    Mistake("No scores yet", "prune --method taylor --keep 2 vit", 2),
    Mistake("No number of heads", "prune --method random vit", 2),
    Mistake("Two numbers of heads", "prune --method random --keep 2 --remove 3 vit", 2),
    Mistake(
        "A criterion that has no number of its own", "prune --method random --keep auto vit", 2
    ),
    Mistake("A sample without its pool", "prune --method random --sample 3 vit", 2),
    Mistake("Compensation without data", "prune --method random --keep 2 vit --compensate mean", 2),
    Mistake(
        "An OOD objective without OOD data",
        "score --method circuit --objective ood --data data.npz vit",
        2,
    ),
    Mistake("An output that is there", "prune --method random --keep 2 vit -o a", 2),
    Mistake("An output in no folder", "prune --method random --keep 2 vit -o nowhere/a", 2),
    Mistake("An output over an input", "prune --method random --keep 2 vit -o vit --force", 2),
    Mistake("One member", "fuse a -o h", 2),
    Mistake("An option that requires another", "fuse a b -o h --limit 100", 2),
    Mistake("A recipe misspelt", "finetune vit --data data.npz --recipe imagnet -o t", 2),
    Mistake(
        "A field that no recipe has",
        "finetune vit --data data.npz --recipe demo --set learning_rate=1 -o t",
        2,
    ),
    Mistake(
        "A field out of its range",
        "finetune vit --data data.npz --recipe demo --set steps=0 -o t",
        2,
    ),
    Mistake("Nothing to evaluate", "eval --data data.npz", 2),
    Mistake("No data to evaluate on", "eval vit", 2),
    Mistake(
        "A temperature to fit, and no validation data",
        "eval vit --data data.npz --temperature fit",
        2,
    ),
    Mistake("An OOD score misspelt", "eval vit --data data.npz --ood-score entrpy", 2),
    Mistake("An OOD score that was not fitted", "eval vit --data data.npz --ood-score rmds", 2),
    Mistake(
        "A budget that cannot be read",
        "build vit --data data.npz --val data.npz --budget fast -o h",
        2,
    ),
    Mistake(
        "A budget that nothing is within",
        "build vit --data data.npz --val val.npz --budget macs=0.001 -o h",
        2,
        various,
    ),
    Mistake(
        "Members to be chosen by OOD data that is not given",
        "build vit --data data.npz --val data.npz --objective avg -o h",
        2,
    ),
    Mistake(
        "Another build's work folder",
        "build vit --data data.npz --val val.npz --cache work -o h",
        2,
        lambda f: (various(f), built(f), various(f, rows=100)),
    ),
    Mistake("A risk bound without a risk", "calibrate vit --data data.npz --delta 0.1 -o c", 2),
    Mistake("A cascade of one model", "calibrate vit --data data.npz --cascade -o c", 2),
    Mistake(
        "Two options that conflict",
        "calibrate hydra --data data.npz --cascade --max-drop 1 --budget 1.2 -o c",
        2,
    ),
    Mistake(
        "A file format that cannot be written", "predict vit --data data.npz -o answers.xlsx", 2
    ),
    Mistake("Answers to be kept in another format", "serve vit --answers answers.csv", 2),
    Mistake("An address that is not this machine's", "serve vit --host 192.0.2.1", 2),
    Mistake("An OOD set without a name", "eval vit --data data.npz --ood near:=data.npz", 2),
    Mistake("A corruption misspelt", "eval vit --data data.npz --corrupt gausian_noise", 2),
    Mistake("One name for two data sets", "eval vit --data x=data.npz --data x=data.npz", 2),
    Mistake(
        "An assertion about a number that the report lacks",
        'eval vit --data data.npz --assert "id.acuracy>=0.9"',
        2,
    ),
    Mistake("No class names", "eval clip --data data.npz", 2, clip),
    Mistake("No model card to write into", "eval vit --data data.npz --card", 2),
    Mistake("A device that does not exist", "eval vit --data data.npz --device tpu", 2),
    Mistake("onnxruntime in half precision", "bench vit --engine onnx --dtype bfloat16", 2),
    Mistake("A picture in an unknown format", f"{BUILD} p.pdf", 2),
    Mistake("A hydra where one selection is expected", "inspect hydra a", 2),
    Mistake("Eight bits without data to check them on", "export vit --int8", 2),
    Mistake("A hydra as a stock directory", "export hydra --format stock -o stock/", 4),
    Mistake(
        "An option that is none, in a file",
        "prune run.toml",
        2,
        lambda folder: (folder / "run.toml").write_text('checkpoint = "vit"\nkeeep = 2\n'),
    ),
    Mistake("A padded hydra", "export hydra --format padded", 2),
    Mistake(
        "A directory that is not empty", "demo -o full", 2, folder_of("full", {"notes.txt": "mine"})
    ),
    Mistake("A reference without a report", "eval vit a --data data.npz --reference a", 2),
    Mistake("No such checkpoint", "inspect gone", 3),
    Mistake("A replay from a directory that is not there", "verify hydra --again gone", 3),
    Mistake(
        "Not a checkpoint",
        "inspect notes",
        3,
        text("notes.safetensors", "hello, I am not a checkpoint"),
    ),
    Mistake(
        "A file that was cut off",
        "inspect vit",
        3,
        lambda f: os.truncate(f / "vit.safetensors", 60_000),
    ),
    Mistake(
        "A pickled checkpoint",
        "inspect old",
        3,
        folder_of("old", {"config.json": "{}", "pytorch_model.bin": ""}),
    ),
    Mistake(
        "An architecture that cannot be recognised",
        "inspect odd",
        3,
        bare("odd", {"encoder.weight": (4, 4)}),
    ),
    Mistake("Weights that are NaN", "prune nan --method random --keep 2 -o m", 3, with_nan),
    Mistake(
        "The state of an interrupted training, damaged",
        "finetune vit --data data.npz --recipe demo -o t --resume",
        3,
        lambda f: (f / "t.training.safetensors").write_bytes(b"x"),
    ),
    Mistake("A manifest of other weights", "eval hydra --data data.npz", 3, bent),
    Mistake(
        "A manifest of a later version",
        "inspect vit",
        3,
        sidecar(lambda m: m.update(format="hydrasurgeon.manifest/3")),
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
    Mistake(
        "The manifest of another file",
        "predict vit --data data.npz",
        3,
        lambda f: shutil.copy(decided(f), f / "vit.heads.json"),
    ),
    Mistake("A cascade that was not fitted", "eval hydra --cascade --data data.npz", 3),
    Mistake(
        "Answers of a model without a decision state",
        "monitor answers.jsonl --against vit",
        3,
        text("answers.jsonl", "{}\n"),
    ),
    Mistake("Dropout in a model without dropout", "eval vit --data data.npz --mc-dropout 5", 4),
    Mistake("More heads than there are", "prune --method random --keep 9 vit", 4),
    Mistake("A hydra cannot be pruned", "prune --method random --keep 1 hydra", 4),
    Mistake("Members of two backbones", "fuse a small -o h", 4),
    Mistake(
        "A decoder",
        "prune --method random --keep 2 bert -o m",
        4,
        lambda f: bert(f, model_type="gpt2", architectures=["GPT2LMHeadModel"]),
    ),
    Mistake(
        "A model that brings code of its own",
        "prune --method random --keep 2 bert -o m",
        4,
        lambda f: bert(f, auto_map={"AutoModel": "modeling.Mine"}),
    ),
    Mistake(
        "Validation data that is the training data",
        "build vit --data data.npz --val data.npz -o h",
        5,
    ),
    Mistake("No such file", "eval vit --data dat.npz", 5),
    Mistake("No such kind of data", "eval vit --data table.xlsx", 5, text("table.xlsx", "x")),
    Mistake(
        "Labels beyond the classes",
        "eval vit --data seven.npz",
        5,
        lambda f: images(f / "seven.npz", classes=7),
    ),
    Mistake(
        "No labels",
        "eval vit --data bare.npz",
        5,
        lambda f: images(f / "bare.npz", classes=5, labels=False),
    ),
    Mistake(
        "A file that is not an image",
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
    Mistake(
        "Two texts in a row",
        "eval vit --data d.csv",
        5,
        text("d.csv", "premise,hypothesis,label\na,b,0\n"),
    ),
    Mistake(
        "A pair without its second text",
        "predict bert --data d.jsonl",
        5,
        lambda f: (bert(f), text("d.jsonl", '{"text": "a", "text_pair": "b"}\n{"text": "a"}\n')(f)),
    ),
    Mistake(
        "A column of no role",
        "eval vit --data d.csv --columns txt=a",
        2,
        text("d.csv", "a,label\nb,0\n"),
    ),
    Mistake(
        "A class that the model does not have",
        "eval bert --data d.csv",
        5,
        lambda f: (
            bert(
                f,
                id2label={0: "bad", 1: "good", 2: "mixed"},
                label2id={"bad": 0, "good": 1, "mixed": 2},
            ),
            text("d.csv", "text,label\na film,bad\na book,superb\n")(f),
        ),
    ),
    Mistake("A hub set without a split", "eval vit --data hf:cifar100", 5),
    Mistake("A file that holds no answers", "monitor val.npz --against ready", 5, decided),
    Mistake("A file that is not a predictions file", "eval --predictions-in vit.safetensors", 5),
    Mistake(
        "A risk that needs more samples",
        "calibrate vit --data data.npz --ood-score msp --risk 0.01 -o c",
        5,
    ),
    Mistake(
        "Three validation samples",
        "calibrate vit --data three.npz -o c",
        5,
        lambda f: images(f / "three.npz", classes=3, rows=3),
    ),
    Mistake(
        "Fit data that is the validation data",
        "calibrate vit --data val.npz --fit-data val.npz -o c",
        5,
        various,
    ),
    Mistake(
        "Models of different classes",
        "eval vit ten --data data.npz",
        5,
        lambda f: random_weights(f / "ten", classes=10),
    ),
    Mistake(
        "LoRA without its package",
        "finetune vit --data data.npz --recipe lora -o t",
        6,
        without=("peft",),
    ),
    Mistake(
        "CAHP without its packages",
        "score --method cahp --data data.npz vit",
        6,
        without=("kmedoids", "kneed"),
    ),
    Mistake("Remote data that is not there", "eval vit --data memory://none.parquet", 5),
    Mistake(
        "ONNX without its packages", "export vit", 6, without=("onnx", "onnxscript", "onnxruntime")
    ),
    Mistake("A server without its packages", "serve vit", 6, without=("fastapi", "uvicorn")),
    Mistake("A picture without matplotlib", f"{BUILD} p.svg", 6, without=("matplotlib",)),
)


def run_mistake(mistake: Mistake, folder: Path) -> Outcome:
    """The command in this process, in a folder that `scene` was made in."""
    from hydrasurgeon.cli.app import run

    mistake.make(folder)
    before = _files(folder)
    err = io.StringIO()
    silent = contextlib.redirect_stdout(io.StringIO())
    # On a slow machine progress would be among what is said.
    patient = mock.patch("hydrasurgeon.render.console.PLAIN_EVERY_SECONDS", math.inf)
    with (
        _inside(folder),
        _lacking(mistake.without),
        patient,
        contextlib.redirect_stderr(err),
        silent,
    ):
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
