"""What a release is made of: archives that PyPI takes, and a citation of this version."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= {*citation}
    assert citation["version"] == version("hydrasurgeon")
    assert f'version = "{citation["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.slow
def test_pypi_would_take_what_is_built(tmp_path: Path) -> None:
    for module in ("hatchling", "twine"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    wheel, sdist = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert (wheel.suffix, sdist.suffix) == (".whl", ".gz")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "Makefile", "hydrasurgeon/__init__.py"} <= names
