"""The notebook runs from top to bottom, and its table holds what `eval` says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    root = str(NOTEBOOK.parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    *_, table = [output for output in outputs if "text/html" in output.get("data", {})]
    lines = table["data"]["text/plain"].splitlines()
    accuracy = {line.split()[0]: float(line.split()[1]) for line in lines[1:5]}
    assert {*accuracy} == {"probe", "single", "mean", "half"}
    assert min(accuracy.values()) > 0.8
    printed = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
    answered, wrong = map(float, re.findall(r"answered ([\d.]+), wrong ([\d.]+)", printed)[0])
    assert answered > 0.5
    assert wrong <= 0.07, "the promise, and what chance adds on so few rows"
    clothes, digits = map(
        float, re.findall(r"unfamiliar: ([\d.]+) .* ([\d.]+) of digits", printed)[0]
    )
    assert digits > 0.9 > 0.2 > clothes
    assert any("image/png" in output.get("data", {}) for output in outputs), "the plot"
