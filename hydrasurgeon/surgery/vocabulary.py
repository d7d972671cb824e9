"""Trim the vocabulary of a model of texts: tokens that some texts do not use lose their rows of the
embedding, and the tokenizer numbers the others anew. Texts whose tokens all stay are answered as
before, but for the last digits of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.errors import DataError, SurgeryError
from hydrasurgeon.files.manifest import DataRecord, Model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from hydrasurgeon.data import Samples
    from hydrasurgeon.options.making import PruneOptions

AT_ONCE = 1000
"""Texts that are tokenized in one go."""
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Trimmed:
    """A smaller vocabulary, and what it costs the texts that it was made for."""

    model: Model
    files: dict[str, str]
    table: str
    """Name of the embedding."""
    rows: NDArray[np.bool_]
    """Mask of its rows that stay."""
    data: tuple[DataRecord, ...]
    texts: int
    changed: int
    """Number of texts that are read otherwise than before."""
    rare: float
    """Fraction of texts in the first set with a token that no other text has, or that is gone.

    At least as many new texts like these are read otherwise.
    """

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of tokens before and after."""
        return len(self.rows), int(self.rows.sum())


def trim(opened: Single, arguments: PruneOptions) -> Trimmed:
    """Trim the vocabulary to what the texts of `--vocabulary` need."""
    from hydrasurgeon.data import open_data
    from hydrasurgeon.data.texts import Tokenize

    model, family = opened.manifest.model, opened.family
    transform = family.transform(model, files=opened.files)
    if not isinstance(transform, Tokenize):
        raise SurgeryError(
            f"{opened.path}: {model.arch} reads no texts, so it has no vocabulary to trim",
            hint="Leave --vocabulary out.",
        )
    limit, seed = arguments.limit, arguments.seed
    sets = [
        open_data(spec, limit=limit, seed=seed, labelled=False) for spec in arguments.vocabulary
    ]
    held = [[*_texts(samples, skip=arguments.skip_bad)] for samples in sets]
    texts = [text for some in held for text in some]
    read = [*_read(transform, texts)]
    counts = np.bincount(np.concatenate(read))
    used = np.flatnonzero(counts)
    # The most frequent first; of equally frequent ones the lower id.
    ranked = used[np.argsort(-counts[used], kind="stable")]
    most = None if arguments.keep_tokens == "all-seen" else arguments.keep_tokens
    frequent_ids = ranked[:most].tolist()
    smaller, files, table, kept = family.trimmed(
        model, opened.files, transform.tokenizer, frequent_ids
    )
    rows = np.zeros(opened.tensors[table].shape[0], dtype=bool)
    rows[kept] = True
    after = family.transform(smaller, files=files)
    assert isinstance(after, Tokenize)
    new = np.cumsum(rows) - 1
    changed = 0
    for ids, now in zip(read, _read(after, texts), strict=True):
        if not rows[ids].all():
            changed += 1
        elif not np.array_equal(new[ids], now):
            raise SurgeryError(
                f"{opened.path}: its tokenizer would split texts differently after trimming",
                hint="Its vocabulary cannot be trimmed.",
            )
    # Of the first texts those with a token that no other has, or that is gone.
    once = np.concatenate([np.unique(ids) for ids in read])
    common = rows & (np.bincount(once, minlength=len(rows)) > 1)
    rare = float(np.mean([not common[ids].all() for ids in read[: len(held[0])]]))
    return Trimmed(
        smaller,
        files,
        table,
        rows,
        tuple(DataRecord(**samples.fingerprint()) for samples in sets),
        len(texts),
        changed,
        rare,
    )


def _texts(samples: Samples, *, skip: bool) -> Iterator[Any]:
    """Yield the texts of a set, pairs as pairs."""
    if samples.kind != "text":
        raise DataError(
            f"{samples.spec}: holds no texts", hint="Give --vocabulary the training texts."
        )
    for i in range(len(samples)):
        try:
            text = samples.read(i)
        except DataError:
            if not skip:
                raise
        else:
            yield text if isinstance(text, tuple) else str(text)


def _read(transform: Any, texts: Sequence[Any]) -> Iterator[Ids]:
    """Yield the ids of each text, however long it is."""
    from hydrasurgeon.data.texts import blamed

    backend: Tokenizer = transform.backend
    backend.no_truncation()
    backend.no_padding()
    for at in range(0, len(texts), AT_ONCE):
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encoded = backend.encode_batch_fast(list(texts[at : at + AT_ONCE]))
        for text in encoded:
            yield np.array(text.ids, dtype=np.int64)
