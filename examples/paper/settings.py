"""The experiments of `tables.py`: data, models and sizes, small ones and the paper's.

Words in braces are places: {shared} is the folder of small data and models, {here} this folder, and others are named by `--place NAME=PATH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Setting:
    """Data, model and sizes of one experiment."""

    start: str
    train: str
    val: str
    test: str
    choose: str
    """OOD data that circuits are found by; none of them are reported."""
    near: Mapping[str, str]
    far: Mapping[str, str]
    training: str
    """Options of `finetune` for a model from the start."""
    tuning: str
    """Options of `finetune` after pruning."""
    heads: int
    """Heads of each layer."""
    layers: int
    keep: int
    """Heads of each layer that Taylor keeps."""
    remove: int
    """Heads that a circuit removes in all."""
    pool: int
    """Heads, least important first, that members are drawn from."""
    limit: int = 500
    """Samples that heads are scored on."""
    search: str = "attribution"
    """Search of circuits in `score`."""
    lora_steps: int = 200
    classifier: str = ""
    """Options of `finetune` for a classifier on a body that stays as it is."""
    evaluation: str = ""
    """Options of `eval`."""
    texts: bool = False
    validates: bool = True
    """True if `finetune` keeps the epoch that is best on the validation data."""


FROZEN = "--freeze embeddings --set label_smoothing=0"
SMALL = {
    "clothes": Setting(
        start="init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=8",
        train="demo:train",
        val="demo:val",
        test="demo:test",
        choose="demo:textures",
        near={"held-out": "demo:near"},
        far={"digits": "demo:digits"},
        training="--recipe {here}/scratch.toml --set epochs=30 --set lr=2e-3 --set label_smoothing=0",
        tuning=f"--recipe demo --set epochs=2 {FROZEN}",
        heads=8,
        layers=6,
        keep=5,
        remove=18,
        pool=36,
    ),
    "cifar": Setting(
        start="{shared}/models/dinov2-small",
        train="{shared}/data/cifar6-train.npz",
        val="{shared}/data/cifar6-val.npz",
        test="{shared}/data/cifar6-test.npz",
        choose="demo:textures",
        near={"other-classes": "{shared}/data/cifar4-near.npz"},
        far={"digits": "{shared}/data/mnist-test.npz", "shapes": "{shared}/data/animal-shapes.npz"},
        training="--recipe image --set epochs=1 --set label_smoothing=0 --set classifier=probe --limit 4000",
        tuning=f"--recipe image --set epochs=1 {FROZEN} --limit 4000",
        heads=6,
        layers=12,
        keep=4,
        remove=24,
        pool=48,
    ),
    "movies": Setting(
        texts=True,
        start="{minilm}",
        train="{shared}/data/movie-train.jsonl",
        val="{shared}/data/movie-val.jsonl",
        test="{shared}/data/movie-test.jsonl",
        choose="{shared}/data/clinc-val-ood.jsonl",
        near={"products": "{shared}/data/amazon.jsonl"},
        far={"newspaper": "{shared}/data/nyt.jsonl"},
        training="--recipe text --set epochs=1 --set max_length=48 --set batch_size=32 --limit 4000",
        tuning="--recipe text --set epochs=1 --set max_length=48 --set batch_size=32 --freeze embeddings --limit 4000",
        classifier="--set lr=2e-3 --set epochs=3",
        heads=12,
        layers=6,
        keep=6,
        remove=36,
        pool=54,
    ),
    "clinc": Setting(
        texts=True,
        start="{minilm}",
        train="{shared}/data/clinc-train.jsonl",
        val="{shared}/data/clinc-val.jsonl",
        test="{shared}/data/clinc-test.jsonl",
        choose="{shared}/data/clinc-val-ood.jsonl",
        near={"other-intents": "{shared}/data/clinc-near-intents.jsonl"},
        far={"out-of-scope": "{shared}/data/clinc-far-scope.jsonl"},
        training="--recipe text --set epochs=2 --set max_length=32 --set batch_size=32",
        tuning="--recipe text --set epochs=1 --set max_length=32 --set batch_size=32 --freeze embeddings",
        classifier="--set lr=2e-3 --set epochs=3",
        heads=12,
        layers=6,
        keep=6,
        remove=36,
        pool=54,
    ),
}
"""Experiments on small data."""

IMAGENET_SETS = {
    "near": {"ssb_hard": "{openood}/ssb_hard", "ninco": "{openood}/ninco"},
    "far": {"inaturalist": "{openood}/inaturalist", "textures": "{openood}/textures"},
}
PAPER = {
    "imagenet": Setting(
        start="{vit}",
        train="{imagenet}/train",
        val="{imagenet}/train",
        test="{imagenet}/val",
        choose="{openood}/openimage_o",
        training=(
            "--recipe {here}/imagenet.toml --set steps=20000 --set warmup=500 --set label_smoothing=0 --set dropout=0 "
            "--set augment.rand_augment=null --set freeze=[] --set classifier=fresh"
        ),
        tuning="--recipe {here}/imagenet.toml",
        heads=12,
        layers=12,
        keep=8,
        remove=48,
        pool=96,
        limit=5000,
        search="exact",
        lora_steps=20000,
        validates=False,
        **IMAGENET_SETS,
    ),
    "cifar100": Setting(
        start="{vit}",
        train="hf:uoft-cs/cifar100:train",
        val="hf:uoft-cs/cifar100:train",
        test="hf:uoft-cs/cifar100:test",
        choose="{tiny_imagenet}",
        near={"cifar10": "hf:uoft-cs/cifar10:test"},
        far={
            "mnist": "hf:ylecun/mnist:test",
            "svhn": "hf:ufldl-stanford/svhn/cropped_digits:test",
            "textures": "hf:tanganke/dtd:test",
            "places365": "{places}",
        },
        training="--recipe {here}/cifar100.toml --set last_blocks=null --set label_smoothing=0 --set classifier=fresh",
        tuning="--recipe {here}/cifar100.toml",
        heads=12,
        layers=12,
        keep=10,
        remove=24,
        pool=48,
        limit=5000,
        search="exact",
        lora_steps=10000,
        validates=False,
    ),
    "sst2": Setting(
        texts=True,
        start="{bert}",
        train="{texts}/train.jsonl",
        val="{texts}/val.jsonl",
        test="{texts}/test.jsonl",
        choose="{texts}/ag_news.jsonl",
        near={"yelp": "{texts}/yelp_polarity.jsonl", "amazon": "{texts}/amazon_polarity.jsonl"},
        far={name: f"{{texts}}/{name}.jsonl" for name in ("20ng", "trec", "mnli", "rte", "wmt16")},
        training="--recipe {here}/sst2.toml --set lr=8e-6 --set epochs=7 --set freeze=[] --set classifier=fresh",
        tuning="--recipe {here}/sst2.toml",
        heads=12,
        layers=12,
        keep=6,
        remove=72,
        pool=108,
        limit=3000,
        search="exact",
        lora_steps=4000,
    ),
}
"""The paper's experiments on images and texts; `clip.sh` is the one without training."""
GPU = {
    "cifar224": replace(
        SMALL["cifar"],
        training=(
            "--recipe {here}/cifar100.toml --set last_blocks=null --set steps=300 --set warmup=30 --set batch_size=64 "
            "--set label_smoothing=0 --set classifier=probe --dtype bfloat16"
        ),
        tuning=(
            "--recipe {here}/cifar100.toml --set steps=200 --set warmup=20 --set batch_size=64 --set classifier=keep "
            "--set label_smoothing=0 --freeze embeddings --dtype bfloat16"
        ),
        validates=False,
    )
}
"""Settings of `gpu.py`: the paper's recipe for CIFAR-100, with fewer steps."""
SCALES = {"small": SMALL, "paper": PAPER}
