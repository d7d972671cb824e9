"""The examples for clusters: each, on two workers of this machine, gives the rows that `predict` writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hydrasurgeon as hs

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
ROWS = 60
NEEDS = {
    "ray_data": "ray",
    "spark": "pyspark",
}
"""Example → the package it is for."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_answers_as_predict_does(name: str, tmp_path: Path) -> None:
    from tiny_families import FAMILIES

    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    FAMILIES["BERT"].write(tmp_path / "bert")
    texts = [("words " * (i % 7 + 1)).strip() + "!" * (i % 3) for i in range(ROWS)]
    table = pa.table({"id": [str(i) for i in range(ROWS)], "text": texts})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=20)
    hs.predict(
        tmp_path / "bert",
        data=str(tmp_path / "in.parquet"),
        device="cpu",
        out=tmp_path / "expected.parquet",
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "bert", "in.parquet", out.name],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYSPARK_PYTHON": sys.executable,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1]), *filter(None, sys.path)]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = pq.read_table(out).to_pandas().sort_values("id", key=lambda ids: ids.astype(int))
    expected = pq.read_table(tmp_path / "expected.parquet").to_pandas()
    assert answers["id"].tolist() == expected["id"].tolist()
    assert answers["label"].tolist() == expected["label"].tolist()
    assert answers["probability"].tolist() == pytest.approx(expected["probability"], abs=1e-5)
