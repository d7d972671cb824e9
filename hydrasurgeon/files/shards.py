"""Weights cut into several files with an index, in the layout that transformers writes and reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import fill
from hydrasurgeon.files.tensors import Entry, Planned, write_tensors

INDEX = ".index.json"
"""Ending of the file that says which tensor lies in which of several files."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
"""What a size may be given in, and the bytes of each."""
SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMG]?i?B)?", re.IGNORECASE)
"""A size as people write it: a number and perhaps a unit."""


def parse_size(text: str) -> int:
    """`5GB` → bytes."""
    match = SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * UNITS[(match[2] or "B").upper()]) if match else 0
    if size < 1:
        raise UsageError(f"--max-shard-size {text}: not a size", hint="Write 5GB, 500MB or 2GiB.")
    return size


def write_shards(
    weights: Path,
    planned: Sequence[Planned],
    metadata: Callable[[str | None], Mapping[str, str]],
    *,
    most: int,
    others: Sequence[Entry] = (),
) -> None:
    """The files that stand for `weights`, each of at most `most` bytes of tensors or of a single
    one.

    The first carries the metadata, which knows the hash of all and of `others`: so it is written
    last.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    plans = {plan.name: plan for plan in sorted(planned, key=lambda plan: plan.name)}
    stem = weights.name.removesuffix(".safetensors")
    cut = split_state_dict_into_shards_factory(
        plans,
        get_storage_size=lambda plan: plan.nbytes,
        filename_pattern=f"{stem}{{suffix}}.safetensors",
        max_shard_size=most,
    )
    names = list(cut.filename_to_tensors)
    if len(names) == 1:
        write_tensors(weights, planned, metadata, others=others)
        return
    shards = [[plans[name] for name in tensors] for tensors in cut.filename_to_tensors.values()]
    written = [*others]
    for name, shard in list(zip(names, shards, strict=True))[1:]:
        written += write_tensors(weights.with_name(name), shard, lambda _: {})
    write_tensors(weights.with_name(names[0]), shards[0], metadata, others=written)
    index = {"metadata": cut.metadata, "weight_map": cut.tensor_to_filename}
    text = json.dumps(index, indent=2) + "\n"
    fill(weights.with_name(f"{weights.name}{INDEX}"), text.encode())
