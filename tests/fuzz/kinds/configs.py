"""Directories: config, index, tokenizer and preprocessor files changed, missing, in excess, or linked elsewhere."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Attempt, Fifo, Link
from fuzz.hostile import damaged, mutated, text, to_json, value, words

EXITS = {0, 3, 4}
TEXTS = '{"text": "good film"}\n{"text": "xx \u6771 good"}\n'.encode()
"""What a vocabulary is cut to."""
EXTRA = words(
    "preprocessor_config.json tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt vocab.json merges.txt"
    " added_tokens.json config.json open_clip_config.json heads.json chat_template.jinja tokenizer.py modeling.py"
    " model.safetensors.index.json pytorch_model.bin adapter_config.json generation_config.json"
)


def make(random: Random, bases: Bases) -> Attempt:
    family = random.choice(list(bases.directories))
    files: dict[str, Any] = dict(bases.directories[family])
    cuts = random.random() < 0.1 and "tokenizer.json" in files
    if family == "OpenCLIP":
        files.pop(
            "heads.json", None
        )  # what its class names are recorded in; manifests have a kind of their own
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(WAYS if not cuts else (_fields, _tokenizer))(files, random)
    runs = 0.07 if cuts else random.random()
    # A config is read wherever it lies, and a few fields of it; a tokenizer's texts would travel on.
    linked = {name for name, content in files.items() if isinstance(content, Link)}
    return Attempt(
        {"m/t.jsonl": TEXTS, **{f"m/{name}": content for name, content in files.items()}},
        lambda folder, out: use(folder / "m", out, runs),
        _command(random),
        reads=bool(
            linked
            & {"config.json", "open_clip_config.json", "heads.json", "model.safetensors.index.json"}
        ),
    )


def _command(random: Random) -> tuple[str, ...]:
    return random.choice(
        (
            ("inspect", "{}/m", "--json"),
            ("inspect", "{}/m"),
            ("prune", "{}/m", "--method", "random", "--keep", "2", "-o", "{out}/p"),
            (
                "prune",
                "{}/m/model.safetensors",
                "--method",
                "random",
                "--keep",
                "2",
                "-o",
                "{out}/p/",
            ),
            ("score", "{}/m", "--method", "random", "-o", "{out}/s.safetensors"),
            ("prune", "{}/m", "--vocabulary", "{}/m/t.jsonl", "-o", "{out}/v.safetensors"),
        )
    )


def use(path: Path, out: Path, runs: float) -> None:
    """Open it, and prepare what live data would go through; cut the vocabulary of a few."""
    import hydrasurgeon as hs
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
    from hydrasurgeon.families import family_of

    opened = open_checkpoint(path)
    model = opened.manifest.model
    family = family_of(model)
    if runs > 0.3:
        return
    transform: Any = family.transform(model, files=opened.files)
    if getattr(transform, "kind", "image") == "text":
        transform.collate(["good film", "x" * 100, "\ud7ff \x00 é"])
        if runs < 0.1:
            hs.prune(path, vocabulary=str(path / "t.jsonl"), out=out / "v.safetensors")
    else:
        from PIL import Image

        transform(Image.new("RGB", (30, 20)))
    if runs < 0.05 and (model.family != "open_clip" or model.labels):
        family.build(model, opened.manifest.kept or {})


def _json(content: Any) -> Any:
    return json.loads(content if isinstance(content, bytes) else _read(content))


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


def _texts(files: dict[str, Any]) -> list[str]:
    """What can be read and changed as JSON."""
    return [
        name
        for name, content in files.items()
        if name.endswith(".json") and isinstance(content, bytes | Path)
    ]


def _fields(files: dict[str, Any], random: Random) -> None:
    names = _texts(files)
    if not names:
        return
    name = random.choice(names)
    try:
        document = _json(files[name])
    except (ValueError, RecursionError):
        document = {}
    files[name] = to_json(mutated(document, random)).encode("utf-8", "surrogatepass")


def _sizes(files: dict[str, Any], random: Random) -> None:
    """The numbers and names that say how large a model is, and what is loaded for it."""
    name = next(
        (
            n
            for n in ("open_clip_config.json", "config.json")
            if isinstance(files.get(n), bytes | Path)
        ),
        None,
    )
    if name is None:
        return
    try:
        document = _json(files[name])
    except (ValueError, RecursionError):
        return
    holders = [document] if isinstance(document, dict) else []
    for holder in list(holders):
        holders += [inner for inner in holder.values() if isinstance(inner, dict)]
        holders += [
            deep
            for inner in holder.values()
            if isinstance(inner, dict)
            for deep in inner.values()
            if isinstance(deep, dict)
        ]
    if not holders:
        return
    holder = random.choice(holders)
    key = random.choice(
        (
            *holder,
            *holder,
            *words(
                "num_hidden_layers num_attention_heads hidden_size depth num_heads embed_dim img_size patch_size layers width"
                " heads head_width vocab_size context_length attn_implementation _attn_implementation checkpoint_path"
                " auto_map architectures architecture model_type num_labels id2label label2id label_names image_size"
                " max_position_embeddings num_channels torch_dtype dtype quantization_config hf_tokenizer_name"
                " hf_model_name timm_model_name pretrained_cfg input_size global_pool problem_type tie_word_embeddings"
                " is_decoder add_pooling_layer chunk_size_feed_forward qkv_bias mlp_ratio pooling_type hidden_act"
                " layer_norm_eps trust_remote_code"
            ),
        )
    )
    holder[key] = random.choice(
        (
            value(random),
            random.choice((0, 1, 2, 3, 5, 8, 64, 100, 10**7, 10**9, -1)),
            text(random),
            {"0": "a"},
            {"0": "a", "1": "b", "2": "c"},
            {str(i): f"c{i}" for i in range(2000)},
            ["a", "b", "c"],
            [holder.get(key)],
            "Bert\nX",
            {"AutoModel": "x.Y"},
        )
    )
    files[name] = to_json(document).encode("utf-8", "surrogatepass")


def _sharded(files: dict[str, Any], random: Random) -> None:
    """An index in the place of the weights, honest or not."""
    weights = next((n for n in files if n.endswith(".safetensors")), None)
    if weights is None:
        return
    shard = random.choice(
        (
            "model-00001-of-00001.safetensors",
            weights,
            text(random),
            "../outside.safetensors",
            "sub/x.safetensors",
        )
    )
    honest = {
        "metadata": {"total_size": 1},
        "weight_map": {"a.weight": shard, "b.weight": random.choice((shard, text(random)))},
    }
    if (
        "/" not in shard
        and "\0" not in shard
        and 0 < len(shard.encode("utf-8", "replace")) < 200
        and shard not in (".", "..")
        and "\ud800" not in shard
    ):
        content = files.pop(weights)
        files[shard] = content
    files["model.safetensors.index.json"] = to_json(
        honest if random.random() < 0.4 else mutated(honest, random)
    ).encode("utf-8", "surrogatepass")


def _missing(files: dict[str, Any], random: Random) -> None:
    if files:
        del files[random.choice(list(files))]


def _more(files: dict[str, Any], random: Random) -> None:
    name = random.choice(EXTRA)
    files[name] = random.choice(
        (
            b"{}",
            b"",
            b"[]",
            to_json(value(random)).encode("utf-8", "surrogatepass"),
            random.randbytes(50),
            b"raise SystemExit(3)\n",
            json.dumps(
                {
                    "tokenizer_class": random.choice(
                        ("BertTokenizer", "X", "AutoTokenizer", "CLIPTokenizer")
                    ),
                    "auto_map": {"AutoTokenizer": ["tokenizer.T", None]},
                }
            ).encode(),
        )
    )


def _bytes(files: dict[str, Any], random: Random) -> None:
    names = _texts(files)
    if names:
        name = random.choice(names)
        content = files[name]
        files[name] = damaged(content if isinstance(content, bytes) else _read(content), random)


def _elsewhere(files: dict[str, Any], random: Random) -> None:
    """A companion that is a link to another's file, a folder, or a pipe."""
    name = random.choice([n for n in files if not n.endswith(".safetensors")] or ["config.json"])
    files.pop(name, None)
    files[random.choice((name, name, f"{name}/"))] = random.choice(
        (
            *map(Link, ("/etc/hostname", "../../outside.json", "nowhere", name, "/dev/zero", "..")),
            Fifo(),
        )
    )


def _tokenizer(files: dict[str, Any], random: Random) -> None:
    """The parts of a tokenizer that run over every text: patterns, templates, tables."""
    if not isinstance(files.get("tokenizer.json"), bytes | Path):
        return
    try:
        document = _json(files["tokenizer.json"])
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    document[
        random.choice(
            words(
                "pre_tokenizer normalizer decoder post_processor truncation padding model added_tokens version"
            )
        )
    ] = random.choice(
        (
            {
                "type": "Split",
                "pattern": {
                    "Regex": random.choice(
                        ("(a+)+$", "(x*)*y", "(x+x+)+y", "[", "(?=", "." * 5000, "(" * 3000)
                    )
                },
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "x" * 100_000},
            {
                "type": "WordLevel",
                "vocab": {"[UNK]": 2**31, "good": 10**6, "[PAD]": 1},
                "unk_token": "[UNK]",
            },
            {"type": "WordLevel", "vocab": {"[UNK]": 0, "good": 99}, "unk_token": "[UNK]"},
            {"type": "WordLevel", "vocab": {"good": 0, "[PAD]": 1}, "unk_token": "gone"},
            {"type": "WordPiece", "vocab": {"good": 0}, "unk_token": "gone"},
            {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]},
            {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 5},
            [{"id": 2**31, "content": "good", "special": True}],
            value(random),
            None,
        )
    )
    files["tokenizer.json"] = to_json(document).encode("utf-8", "surrogatepass")


WAYS = (
    _fields,
    _fields,
    _fields,
    _sizes,
    _sizes,
    _sizes,
    _sharded,
    _missing,
    _more,
    _bytes,
    _elsewhere,
    _tokenizer,
)
