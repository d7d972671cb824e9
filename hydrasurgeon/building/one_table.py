"""build of one table: hold rows out to choose and calibrate by, or cross-fit where rows are few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hydrasurgeon.data import Samples
from hydrasurgeon.data.folds import NO_FOLD, folds_of
from hydrasurgeon.data.label_check import rows_by_class
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.options.column_roles import CROSS, DataSpec
from hydrasurgeon.options.making import THIRD, BuildOptions

HELD_OUT = 20
"""Percent of the rows of each class that are held out."""
MOST_HELD_OUT = 2000
"""Rows that choose at most, of a large table; one percent of it if that is more."""
ENOUGH = 1500
"""Rows from which on some are held out: a fifth is then 300."""
PER_CLASS = 20
"""Rows per class, on average, from which on some are held out."""
NAMED = 3
"""Classes that a note names."""
RULE = f"rows are held out from {ENOUGH:,} rows and {PER_CLASS} per class on"


def with_val(
    options: BuildOptions, table: Callable[[], Samples], *, body: bool
) -> tuple[BuildOptions, str | None]:
    """Return the options with specs of training and validation rows, and a sentence that says how a
    `table` of both is used; None where two tables are given.
    """
    val = None if options.val is None else DataSpec.parse(options.val).place
    if val is not None and val != CROSS and _percent(val) is None:
        return options, None
    percent, rule = HELD_OUT if val is None else _percent(val), ""
    if val is None:
        samples = table()
        count, classes = len(samples), len(rows_by_class(samples.written))
        per_class = f", {count / classes:.0f} per class" if classes else ""
        rule = f"{visible(samples.spec)} has {count:,} rows{per_class}; "
        if not body:
            rule += "a model with a classifier is not fitted anew"
        elif options.certifying is not None:
            rule += "promises need rows that trained nothing"
        else:
            rule += RULE
            few = count < ENOUGH or (classes and count / classes < PER_CLASS)
            percent = None if few and not _has_tags(samples) else percent
        if percent is not None:
            most = MOST_HELD_OUT
            if options.certifying is not None:  # the rest of the rows certifies
                most = 100 * most // THIRD
            percent = max(1, min(percent, 100 * most // count))
    if percent is None:
        if not body:
            raise UsageError(
                f"--val {CROSS}: fits new classifiers to parts of --data, and {options.checkpoints[0]} has one",
                hint="Give --val 0.2, which holds a fifth of --data out.",
            )
        if options.certifying is not None:
            flag = "--risk" if options.risk is not None else "--coverage"
            raise UsageError(
                f"{flag} is certified on rows that trained nothing, and --val {CROSS} trains on all rows",
                hint="Give --val 0.2, which holds a fifth of --data out, or --val D.",
            )
        how = f"--val {CROSS}: all rows train the model, which is judged by models of five folds"
        return options.but(val=CROSS), f"{how} ({rule or RULE})"
    spec = DataSpec.parse(options.data)
    # Held-out rows stay, whatever their label looks like: they stand for rows to come.
    data, held_out = spec.split(0, 100 - percent), spec.without(None).split(100 - percent, 100)
    how = f"--val {percent / 100:g}: {percent} % of the rows of each class choose and calibrate"
    return options.but(data=str(data), val=str(held_out)), f"{how} ({rule or RULE})"


def judged_rows(data: Samples) -> Samples:
    """Return the rows that folds judge: those whose class has other rows."""
    rows = np.flatnonzero(folds_of(data) != NO_FOLD)
    if not len(rows):
        raise DataError(
            f"{visible(data.spec)}: each of its {len(data):,} rows has a class of its own",
            hint="Is it a column of ids? Name the column of labels: --columns label=NAME.",
        )
    return data.at(rows)


def unjudged_note(data: Samples, judged: Samples) -> list[str]:
    """Return a note on classes that no row judges; empty where there are none."""
    column, left = data.written, judged.written
    if column is None or left is None or column.names is None:
        return []
    if column.labels.ndim > 1 or column.labels.dtype.kind != "i":
        return []
    names = [column.names[at] for at in sorted({*column.labels.tolist()} - {*left.labels.tolist()})]
    if not names:
        return []
    listed, verbs = ", ".join(names[:NAMED]), "has {} and is"
    if len(names) > 1:
        verbs = "have {} and are"
    if len(names) > NAMED:
        listed = f"{len(names):,} classes ({listed}, …)"
    why = verbs.format("too few rows to be judged")
    return [f"{visible(data.spec)}: {listed} {why} learnt all the same"]


def _percent(val: str) -> int | None:
    """Return the percentage that a fraction such as 0.2 is; None for other texts."""
    try:
        fraction = float(val)
    except ValueError:
        return None
    percent = round(100 * fraction) if 0 < fraction < 1 else 0
    if not 1 <= percent <= 90:
        raise UsageError(
            f"--val {val}: expected a fraction from 0.01 to 0.9, {CROSS}, or data",
            hint="--val 0.2 holds a fifth of --data out.",
        )
    return percent


def _has_tags(samples: Samples) -> bool:
    """Return True if labels are tags of words, for which nothing is cross-fitted."""
    labels = samples.labels
    return labels is not None and labels.ndim == 2 and labels.dtype.kind == "i"
