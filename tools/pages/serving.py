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
    server, machine = results["server"], results["machine"]
    graph = results["onnxruntime"]
    clients, workers = results["clients"], server["workers"]
    parts = {
        f"`serve --workers {workers}`, {clients} clients, one worker killed": server,
        f"`serve`, {clients} clients": results["one_worker"],
        "one by one, no server": results["sequential"],
        "one by one, the bare graph in onnxruntime": graph,
    }
    rows = [
        f"| {name} | {part['per_second']:.0f} | {part['per_second'] / graph['per_second']:.1f} ×"
        f" | {part['p50_ms']:.0f} ms | {part['p99_ms']:.0f} ms |"
        for name, part in parts.items()
    ]
    cascade = " and its cascade" if server["went_on"] < server["counted"] else ""
    first, second = results["sequential_per_second"]
    return "\n".join(
        [
            f"Measured for {results['seconds'] / 60:.3g} minutes over loopback, clients and server on the same {machine['cores']} cores"
            f" ({machine['device']}, shared with other work: load average {results['load_average'][1]:g}), with a calibrated hydra of three small ViTs{cascade};"
            " half way through a worker was ended by SIGKILL. In the same run, for a fifth of the time or less: one process, and one by one without a server.",
            "",
            "| | answers a second | by the bare graph | median | 99th percentile |",
            "|---|---:|---:|---:|---:|",
            *rows,
            "",
            f"Only the proportions mean something, and these roughly: one by one, {first:.2g} a second were answered before and {second:.2g} after, for torch's threads wait for cores that others have."
            f" Of {server['sent']:,} requests to the workers {_number(server['lost'])} lost, {_number(server['refused'])} refused"
            f" and {_number(server['retried'])} sent again because their connection broke; the longest took {server['worst_ms'] / 1000:.1f} seconds."
            f" {server['wrong'] or 'No'} answers differed from `predict` by more than float32 rounds between batches (1e-4, OOD scores 2e-3)."
            f" Of those {_number(server['not_kept'])} missing in the file of `--answers`, and {_number(server['kept_twice'])} in it twice."
            f" {server['mean_batch']:.1f} inputs ran in a pass on average.",
        ]
    )


def _number(count: int) -> str:
    """So many were."""
    return {0: "none were", 1: "one was"}.get(count, f"{count:,} were")
