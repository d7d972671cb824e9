"""A checkpoint as a function of tables, for what hands tables to many workers: Ray Data, Spark,
Dask, datasets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.folder import present
from hydrasurgeon.engines import check_engine, engine_of, open_any
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.rows import as_batch, schema_of
from hydrasurgeon.options.deciding import PredictOptions
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tasks.printed import Answers
from hydrasurgeon.tasks.row_columns import CUT, columns_of, with_cut

if TYPE_CHECKING:
    import pyarrow as pa

    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.runtime.answering import Engine

WHERE = "the table"
"""Name of a caller's table in messages."""


class Predictor:
    """A checkpoint that answers tables, in workers too: what is pickled is its options, and each
    process loads it on its first call.

    A dict of columns, a pandas or polars frame, or a pyarrow table or batch goes in, and the
    columns of `predict` come back in the same form; `set` and `top` are lists, and JSON where
    columns are typed, in polars and arrow. A column `id` goes along. Of a list come rows.

    Examples:
        >>> answers = hs.Predictor("backbone")({"id": [7], "image": ["bag.png"]})
        >>> answers["id"], answers["label"], answers["answer"]
        (['7'], ['6'], ['6'])
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Take the checkpoint, the names of the table's columns and the options of `predict`.
        `columns` maps an input to the table's name for it, as {"text": "question"}. Options are
        engine, device, dtype, batch_size, cascade and top.
        """
        if present(Path(checkpoint)):  # a worker has another current folder
            checkpoint = os.path.abspath(checkpoint)
        self.options = PredictOptions.of(checkpoint, **options)
        self.columns = dict(columns or {})

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}

    @cached_property
    def _opened(self) -> Checkpoint:
        checkpoint = open_any(
            self.options.checkpoint or "", arch=self.options.arch, engine=self.options.engine
        )
        opened = classifying(checkpoint, self.options)
        need_classes(opened.manifest, opened.path)
        return opened

    @cached_property
    def _engine(self) -> Engine:
        options = self.options
        check_engine(options, options.dtype)
        self._opened.check_weights()
        return engine_of(
            self._opened,
            engine=options.engine,
            device=options.device,
            dtype=options.dtype,
            rows=0,
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns that come back, of a table with an `id`; it reads the manifest alone."""
        model = self._opened.manifest.model
        return schema_of(columns_of(task_of(model), cut=model.max_tokens is not None))

    def __call__(self, table: Any) -> Any:
        """Answer a table's rows, or a list of texts or images, in their order."""
        from hydrasurgeon.data.samples import Samples
        from hydrasurgeon.data.sources import in_memory
        from hydrasurgeon.data.tables import ID, ColumnSelection, rows, table_of
        from hydrasurgeon.runtime.answering import Answering

        engine, options = self._engine, self.options
        listed, has_id = isinstance(table, list | tuple), False
        if not (listed or isinstance(table, Mapping) or hasattr(table, "columns")):
            message = f"{WHERE}: is not a table but a {type(table).__name__}"
            hint = "Give a dict of columns, a frame, a pyarrow table, or a list."
            raise DataError(message, hint=hint)
        samples: Samples
        if listed:
            samples = in_memory(table, getattr(engine.transform, "kind", "image"))
        else:
            source = table_of(WHERE, table)
            samples, has_id = (
                rows(source, ColumnSelection(self.columns, carried=(ID,))),
                ID in source.names,
            )
        cascade = engine.in_stages(options.cascade)
        answers: list[dict[str, Any]] = [{} for _ in range(len(samples))]
        for piece in Answering([engine], samples, options, features=engine.reads, cascade=cascade):
            index = piece.index.tolist()
            row_prefixes = [{"id": samples.name(i)} for i in index]
            read_texts: Any = partial(list, map(samples.read, index))
            decided = engine.prediction_of(piece.parts, cascade)
            rows_of_piece = engine.rows(decided, row_prefixes, options.top, read_texts)
            for i, row in zip(index, rows_of_piece, strict=True):
                answers[i] = row
        if listed:
            return Answers(answers)
        columns = columns_of(engine.task, cut=engine.facts.max_tokens is not None)
        answers = [*map(with_cut, answers)] if CUT in columns else answers
        if not has_id:
            del columns[ID]
        values_of = {name: [row.get(name) for row in answers] for name in columns}
        lists = {
            name: values
            for name, values in values_of.items()
            if any(isinstance(value, list) for value in values)
        }
        return _like(table, as_batch(answers, columns), lists)


def _like(table: Any, answers: pa.RecordBatch, lists: Mapping[str, list[Any]]) -> Any:
    """Convert the answers to the type of the table."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        return answers
    if isinstance(table, pa.Table):
        return pa.Table.from_batches([answers])
    home = type(table).__module__
    if home.startswith("pandas"):
        frame = answers.to_pandas()
        for name, values in lists.items():
            frame[name] = values
        return frame.set_index(table.index)
    if home.startswith("polars"):
        import polars

        return polars.from_arrow(answers)
    if not any(type(values).__module__ == "numpy" for values in table.values()):
        return answers.to_pydict() | dict(lists)
    names = answers.schema.names
    arrays = {name: answers[name].to_numpy(zero_copy_only=False) for name in names}
    for name, values in lists.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    return arrays
