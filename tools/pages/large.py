"""What stand-ins for an 8B model held in memory, measured."""

from __future__ import annotations

from typing import Any

MARKS = (
    "<!-- large: tools/render_docs.py writes it from benchmarks/results/large.json -->",
    "<!-- end of large -->",
)


def passage(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        "Peaks of whole processes (with Python, torch and transformers: 0.6 GB where weights run), "
        f"`benchmarks/large.py`, {machine['cpu']}, torch {machine['torch']}. Files of zeros with the widths of the 8B",
        "model, or of a Llama of width 1024; `spread` as if no memory were free.",
        "",
        "| stand-in | weights, GB | command | peak of each process, GB |",
        "|---|---|---|---|",
    ]
    for name, peaks in result.items():
        if name == "machine":
            continue
        weights = peaks.get("file") or peaks["float32"]
        dtype = "bfloat16" if "file" in peaks else "float32"
        for command, each in peaks.items():
            if isinstance(each, list):
                shown = " and ".join(f"{peak:.2f}" for peak in each)
                lines.append(f"| {name} | {weights} ({dtype}) | {command} | {shown} |")
    return "\n".join(lines)
