"""docs/guide/serving.md: what `serve` does under load, from benchmarks/results/serve.json."""

from __future__ import annotations

from typing import Any

MARKS = (
    "<!-- served: tools/render_docs.py writes it from benchmarks/results/serve.json -->",
    "<!-- end of served -->",
)
"""The marks around the passage in docs/guide/serving.md."""


def passage(results: dict[str, Any]) -> str:
    """The passage."""
    server, plain, machine = results["server"], results["sequential"], results["machine"]
    parts = {
        f"`serve`, {results['clients']} clients": server,
        "one by one, no server": plain,
        "one by one, the bare graph in onnxruntime": results["onnxruntime"],
    }
    rows = [
        f"| {name} | {part['per_second']:.0f} | {part['p50_ms']:.0f} ms | {part['p99_ms']:.0f} ms |"
        for name, part in parts.items()
    ]
    cascade = " and its cascade" if server["went_on"] < server["counted"] else ""
    lost, strange = server["lost"] + server["refused"], server["wrong"]
    return "\n".join(
        [
            f"Measured for {results['seconds'] / 60:.3g} minutes over loopback, clients and server on the same {machine['cores']} cores"
            f" ({machine['device']}, shared with other work: load average {results['load_average'][1]:g}), with a calibrated hydra of three small ViTs{cascade};"
            " one by one in the same run, in a process without a server:",
            "",
            "| | answers a second | median | 99th percentile |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            f"The load varied: one by one, {results['sequential_per_second'][0]:.0f} a second were answered before and {results['sequential_per_second'][1]:.0f} after."
            f" Of {server['sent']:,} requests {lost or 'none'} {'were' if lost != 1 else 'was'} lost or refused, and {strange or 'no'}"
            f" answer{'' if strange == 1 else 's'} differed from that of `predict` by more than float32 rounds between batches (1e-4, OOD scores 2e-3); {server['mean_batch']:.1f} inputs ran in a pass on average.",
        ]
    )
