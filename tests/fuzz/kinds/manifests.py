"""Manifests: any field changed, in the header, beside the file, or in both, with hashes made to fit."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from fuzz.bases import Bases, packed
from fuzz.guard import Attempt
from fuzz.hostile import damaged, mutated, text, to_json, value, words

EXITS = {0, 3, 4}


def make(random: Random, bases: Bases) -> Attempt:
    base = random.choice(bases.checkpoints)
    manifest = base.manifest
    changed = (
        random.choice(AIMED)(manifest, random)
        if random.random() < 0.4
        else mutated(manifest, random)
    )
    said = to_json(changed)
    body, header = base.body, {**base.header, "__metadata__": dict(base.header["__metadata__"])}
    content = said.encode("utf-8", "surrogatepass")
    if random.random() < 0.03:
        content = damaged(content, random)
        said = content.decode("utf-8", "replace")
    where = random.choice(("inside", "inside", "inside", "both", "beside", "alone"))
    if where in ("inside", "both"):
        header["__metadata__"]["hydrasurgeon"] = said
    elif where == "alone":
        del header["__metadata__"]["hydrasurgeon"]
    files: dict[str, Any] = {"x.safetensors": packed(to_json(header), body)}
    if where != "inside":
        files["x.heads.json"] = content
    further = random.random()
    return Attempt(
        files, lambda folder, out: use(folder / "x.safetensors", out, further), _command(random)
    )


def _command(random: Random) -> tuple[str, ...]:
    path = "{}/x.safetensors"
    return random.choice(
        (
            ("inspect", path),
            ("inspect", path, "--json"),
            ("verify", path, "--json"),
            ("prune", path, "--method", "random", "--keep", "1", "-o", "{out}/p.safetensors"),
            ("prune", path, "--method", "random", "--remove", "2", "-o", "{out}/p/"),
            ("fuse", path, path, "-o", "{out}/h.safetensors"),
        )
    )


def use(path: Path, out: Path, further: float) -> None:
    """Open and describe it; some of what is taken is also cut, fused, and run."""
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
    from hydrasurgeon.files.manifest import parse_manifest

    opened = open_checkpoint(path)
    again = parse_manifest(opened.manifest.to_json(), "again")
    assert again == opened.manifest, "what was taken does not survive being written"
    json.loads(opened.manifest.to_json(), parse_constant=_strict)
    opened.manifest.to_header()
    if further < 0.5:
        return
    opened.digests()
    _work(path, opened.manifest.kind, out, further)


def _work(path: Path, kind: str, out: Path, further: float) -> None:
    import hydrasurgeon as hs

    if further > 0.97:
        _run(path)
    elif further > 0.9 and kind == "hydra":
        _write_again(path, out)
    elif kind != "hydra":
        hs.prune(path, method="random", keep=1, out=out / "p.safetensors")
        if further > 0.9:
            hs.prune(path, method="random", remove=1, out=f"{out}/p/")


def _write_again(path: Path, out: Path) -> None:
    """A hydra as a directory, with the state's own file, its model card and its modelling files."""
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
    from hydrasurgeon.checkpoints.writing import save
    from hydrasurgeon.files.tensors import Planned

    opened = open_checkpoint(path)

    def planned(name: str) -> Planned:
        info = opened.tensors[name]
        return Planned(name, info.dtype, info.shape, lambda: opened.tensors.blocks(name))

    save(
        out / "d",
        [planned(name) for name in opened.tensors],
        lambda sha256: rewritten(opened.manifest, weights_sha256=sha256),
        files=opened.files,
    )
    open_checkpoint(out / "d").digests()


def _run(path: Path) -> None:
    import torch

    import hydrasurgeon as hs
    from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

    model = open_checkpoint(path).manifest.model
    if model.family == "open_clip":
        return  # its tiny vocabulary reads no class names
    loaded = hs.load(path, device="cpu")
    inputs: Any = torch.ones(1, 9, dtype=torch.long)
    if "input_size" in model.preprocess:
        inputs = torch.zeros(1, *model.preprocess["input_size"])
    with torch.inference_mode():
        loaded(inputs)
    if loaded.state is not None:
        decided = loaded.decide(inputs)
        assert decided.answer


def _strict(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _towers_and_kept(m: dict[str, Any], random: Random) -> Any:
    """Consistent with itself, and with nothing else."""
    name = random.choice(list(m["towers"]))
    factor = random.choice((2, 3, 100))
    tower = m["towers"][name]
    what = random.choice(("layers", "heads", "dim", "name"))
    if what == "name":
        other = text(random)
        m["towers"][other] = m["towers"].pop(name)
        for holder in (m, *(m.get("members") or ())):
            if holder.get("kept"):
                holder["kept"][other] = holder["kept"].pop(name)
        return m
    tower[what] *= factor
    if what == "dim":
        tower["head_dim"] *= factor
    if what == "layers":
        for holder in (m, *(m.get("members") or ())):
            if holder.get("kept"):
                holder["kept"][name] = holder["kept"][name] * factor
    return m


def _kept(m: dict[str, Any], random: Random) -> Any:
    holder = m if m.get("kept") else random.choice(m["members"])
    rows = random.choice(list(holder["kept"].values()))
    at = random.randrange(len(rows))
    rows[at] = random.choice(
        (
            [],
            [0],
            [0, 1, 2, 3],
            [3, 2],
            [0, 0],
            [4],
            [-1],
            [True],
            [1.0],
            ["1"],
            [2**70],
            list(range(5000)),
            [rows[at]],
        )
    )
    if random.random() < 0.2:
        rows.append([0])
    return m


def _config(m: dict[str, Any], random: Random) -> Any:
    """What reaches a library: keys of its own, and sizes that contradict the towers."""
    key = random.choice(
        words(
            "checkpoint_path pretrained attn_implementation _attn_implementation torch_dtype auto_map num_heads depth"
            " embed_dim img_size patch_size num_hidden_layers num_attention_heads hidden_size vocab_size model_type"
            " global_pool norm_layer act_layer hidden_act block_fn mlp_ratio class_token cache_dir features_only"
            " pretrained_cfg quantization_config gradient_checkpointing hf_model_name layers width custom_text text_cfg"
            " vision_cfg zero_shot image_size intermediate_size max_position_embeddings scriptable name_or_path id2label"
        )
    )
    holders = [
        part
        for part in (m["model"]["config"], *m["model"]["config"].values())
        if isinstance(part, dict)
    ]
    random.choice(holders)[key] = random.choice(
        (value(random), random.choice((0, 1, 2, 3, 8, 100, 10**7, 10**9)), "os.system", {})
    )
    return m


def _decision(m: dict[str, Any], random: Random) -> Any:
    """The decision state: numbers that are none, shapes of other tensors, members and classes that the model has
    not."""
    decision = m.get("decision")
    if decision is None or random.random() < 0.1:
        m["decision"] = random.choice(
            (
                value(random),
                {},
                {"temperature": 1.0},
                None,
                {
                    "temperature": 1.0,
                    "ood": {
                        "score": "msp",
                        "threshold": 0.5,
                        "id_flagged": 0.05,
                        "chosen_by": "option",
                    },
                    "conformal": {"method": "lac", "coverage": 0.9, "threshold": 0.5},
                    "fitted": 10,
                    "certified": 10,
                },
            )
        )
        return m
    holder = random.choice(
        [decision, *(part for part in decision.values() if isinstance(part, dict))]
    )
    numbers = (
        0,
        -1,
        1,
        0.5,
        1e308,
        -1e308,
        5e-324,
        float("nan"),
        float("inf"),
        2**31,
        2**70,
        True,
        "1",
        None,
        [],
        {},
    )
    what = random.randrange(6)
    if decision.get("cascade") and random.random() < 0.7:
        _cascade(decision["cascade"], random, numbers)
    elif what == 0 and holder:
        holder[random.choice(list(holder))] = random.choice(numbers)
    elif what == 1:
        decision["ood"][random.choice(("width", "size"))] = random.choice((*numbers, 32, 64, 10**9))
    elif what == 2:
        decision["ood"]["score"] = random.choice(
            ("mds", "rmds", "vim", "knn", "mcm", "msp", "residual", text(random))
        )
    elif what == 3:
        standards = decision["ood"].get("members") or [{"mean": 0.0, "deviation": 1.0}]
        decision["ood"]["members"] = random.choice(
            (
                standards[:1],
                standards * 2,
                standards * 2000,
                [{"mean": random.choice(numbers), "deviation": random.choice(numbers)}]
                * len(standards),
                [],
            )
        )
    elif what == 4:
        decision[random.choice(("joint", "abstain", "conformal"))] = random.choice(
            (
                {"aleatoric": random.choice(numbers), "epistemic": 1.0},
                value(random),
                None,
                {
                    "threshold": random.choice(numbers),
                    "risk": 0.1,
                    "delta": 0.1,
                    "bound": 0.1,
                    "coverage": 1.0,
                },
            )
        )
    else:
        m["history"] = random.choice(
            (
                [],
                [step for step in m["history"] if step["command"] != "calibrate"],
                m["history"] * 2,
                m["history"][::-1],
                [{**step, "inputs": []} for step in m["history"]],
                [{**step, "data": step["data"] * 3} for step in m["history"]],
                [
                    {**step, "args": {**step["args"], text(random): value(random)}}
                    for step in m["history"]
                ],
            )
        )
    return m


def _cascade(record: dict[str, Any], random: Random, numbers: tuple[Any, ...]) -> None:
    """Thresholds, shares and constants of anything; a cascade of an older version."""
    names = (*record, "bias", "labels", "steps")
    record[random.choice(names)] = random.choice((*numbers, value(random), [1, 3]))


AIMED = (_towers_and_kept, _kept, _config, _config, _decision, _decision)
