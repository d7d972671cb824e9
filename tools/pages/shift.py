"""docs/guide/shift.md: how far corruptions move a picture, compared with a library's, from benchmarks/results/corruptions.json."""

from __future__ import annotations

from typing import Any

MARKS = (
    "<!-- corruptions: tools/render_docs.py writes them from benchmarks/results/corruptions.json -->",
    "<!-- end of corruptions -->",
)


def passage(results: dict[str, Any]) -> str:
    """Ours beside the library's."""
    lines = ["| corruption | ours | imagecorruptions-imaug 1.1.5 |", "|---|---|---|"]
    for name, row in results["corruptions"].items():
        ours, theirs = (" ".join(f"{v:.1f}" for v in row[who]) for who in ("ours", "theirs"))
        lines.append(f"| `{name}` | {ours} | {theirs} |")
    lines += [
        "",
        (
            f"{results['pictures']} photographs of {results['side']} pixels, {results['draws']} draws each;"
            " `benchmarks/corruptions.py`."
        ),
    ]
    return "\n".join(lines)
