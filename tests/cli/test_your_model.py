"""README.md, docs/guide/your-model.md, csv-to-service.md, text-pairs.md, entities.md and decoders.md: their commands run on folders of
transformers and on a file of timm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from own_models import embedder_and_tables, notes_folder, pair_folder, pictures, text_folder
from warm import warm_path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
sys.path.insert(0, str(ROOT / "tools"))

from pages.readme import with_outputs  # noqa: E402

SECTIONS = [
    ("csv-to-service", "# From a CSV", embedder_and_tables),
    ("your-model", "## An embedder", embedder_and_tables),
    ("your-model", "## A folder", text_folder),
    ("your-model", "## A file", pictures),
    ("text-pairs", "## A complete example", pair_folder),
    ("entities", "## De-identification", notes_folder),
    ("decoders", "## A complete example", partial(text_folder, family="Qwen3")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "section", "make"), SECTIONS)
def test_the_commands_of_a_section_run(
    page: str, section: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    text = (GUIDE / f"{page}.md").read_text(encoding="utf-8").split(section)[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", text, re.S)
    assert blocks
    environment = os.environ | {"PATH": warm_path()}
    for block in blocks:
        if page == "csv-to-service":  # the toy's labels are too noisy for less
            block = block.replace("--risk 0.05", "--risk 0.2")
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    (answers,) = (*tmp_path.glob("answers.csv"), *tmp_path.glob("redacted.jsonl"))
    assert len(answers.read_text().splitlines()) > 200


@pytest.mark.slow
def test_the_readme_runs_in_an_empty_folder(tmp_path: Path) -> None:
    """Every command, in its order; the files that its sentences name are there afterwards."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with_outputs(text, tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"vit.heads.json", "vit-taylor-k5.safetensors", "hydra.safetensors"} <= written
    assert {"ready.safetensors", "answers.csv", "small.safetensors"} <= written
