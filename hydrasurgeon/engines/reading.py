"""What a graph's inputs are made of, without the library that the model is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hydrasurgeon.data.texts import Tokenize
from hydrasurgeon.data.words import TokenizeWords
from hydrasurgeon.families.base import Family
from hydrasurgeon.files.manifest import OF_WORDS, Model
from hydrasurgeon.run.texts import TYPES, stored


def transform_of(
    family: Family,
    model: Model,
    files: Mapping[str, str],
    *,
    tokenizer: str | None,
    inputs: Sequence[str],
    where: str,
) -> Any:
    """What makes a graph's `inputs` of samples: with the `tokenizer` that its file holds, or by
    Pillow and numpy.
    """
    if "input_size" in model.preprocess:
        return family.pictures(model, files=files)
    if tokenizer is None:  # an older version wrote the file
        return family.transform(model, files=files)
    load = partial(stored, tokenizer, names=inputs, where=where)
    length = int(model.preprocess["max_length"])
    if model.pooling == OF_WORDS:
        return TokenizeWords(load, max_length=length, inputs="text")
    return Tokenize(load, max_length=length, inputs=model.inputs, typed=TYPES in inputs)
