"""The check of the pages finds long sentences, bad openings and private words, and only in prose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from readability import faults, sentences  # noqa: E402

LONG = " ".join(["word"] * 41)


@pytest.mark.parametrize(
    ("page", "line", "part"),
    [
        (f"# Title\n\nShort.\n{LONG}.\n", 4, "41 words"),
        (f"- short\n- {LONG}\n", 2, "41 words"),
        ("A row.\nOf these,\nnone is left.\n", 2, "begins with 'Of'"),
        ("A row. **By hand** it takes long.\n", 1, "begins with 'By'"),
        ("A row.\n\n- In what follows\n", 3, "begins with 'In what'"),
        ("It beats the\n\n[plain rivals](x.md) of a hydra.\n", 3, "'plain rivals'"),
        ("The rows of VAL.\n", 1, "write instead: validation rows"),
        ("```text\nVAL\n```\nThe rows of VAL.\n", 4, "'VAL'"),
    ],
)
def test_a_fault_is_named_with_its_line(page: str, line: int, part: str) -> None:
    assert any(number == line and part in text for number, text in faults(page))


def test_the_mean_sentence_is_limited() -> None:
    words = " ".join(["word"] * 20)
    assert not list(faults(f"{words}. {words}.\n"))
    ((line, text),) = faults(f"{words}. {words} more.\n")
    assert line == 1
    assert text.startswith("20.5 words in the mean sentence")


@pytest.mark.parametrize(
    "page",
    [
        f"```bash\n{LONG}\n```\n",
        f"<!-- {LONG} -->\n",
        f"| {LONG} |\n",
        f"# Of {LONG}\n",
        f"Code:\n\n    {LONG}\n\n    By {LONG}\n",
        f"![{LONG}](picture.svg)\n",
        f"[text]({LONG}) is a link.\n",
        f"`{LONG}` is one word, and so is `--data VAL`.\n",
        "An interval. Value and e.g. Offers are words.\n",
    ],
)
def test_only_prose_counts(page: str) -> None:
    assert not list(faults(page))


def test_sentences_are_split_where_a_reader_stops() -> None:
    page = 'One has .5 or 0.5.\nTwo ("ends here.") Three?\n\n1. four\n2. five\n'
    assert [(line, text.strip("() ")) for line, text in sentences(page)] == [
        (1, "One has .5 or 0.5."),
        (2, 'Two ("ends here."'),
        (2, "Three?"),
        (4, "four"),
        (5, "five"),
    ]


def test_the_command_names_path_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Good.\n\n{LONG}.\n", encoding="utf-8")
    command = [sys.executable, "tools/readability.py", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stdout.startswith(f"{page}:3: 41 words in a sentence")
    page.write_text("Good.\n", encoding="utf-8")
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, "")
