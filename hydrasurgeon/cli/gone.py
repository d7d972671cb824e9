"""Options that are gone, and what to use instead; the table goes with 1.0."""

from __future__ import annotations

GONE: dict[str, str] = {
    # option → what to use instead; "COMMAND --option" where it is gone from that command alone.
    "finetune --temperature": "Say --teacher-temperature; --temperature is eval's.",
    "calibrate --max-drop": "A cascade lets the NLL on VAL rise by 0.01 at most; see `eval --cascade`.",
    "bench --cascade": "Use `eval --cascade`, which times it beside the whole model.",
    "export --cascade": "Graphs answer whole; leave it out, or use `serve`.",
    "--config": "Options go on the command line: keep them in a shell script or a Makefile.",
    "--dry-run": "Only `build --dry-run` plans: other commands do what they are told.",
    "serve --queue": "At most 256 inputs wait; more are refused with 429.",
    "monitor --report": "Use `monitor --json`.",
    "eval --mc-dropout": "examples/paper/mc_dropout.py writes a file for `eval --predictions-in`.",
    "finetune --trunk-cache": "Tune the members, then fuse them.",
    "fuse --soup": "`fuse --mean` takes all alike.",
    "fuse --base": "`fuse --mean` takes all alike.",
    "--push-to-hub": "Use `hf upload REPO DIR`; the model card is written as ever.",
    "eval --corrupt": "Write the sets by examples/paper/corrupt.py, and give them as --shift NAME:S=D.",
    "--conformal": "Prediction sets are LAC's; figures say that others are larger.",
    "--delta": "A promise may be broken with probability 0.05.",
    "prune --ood-score": "A circuit detects OOD data by msp.",
    "score --ood-score": "A circuit detects OOD data by msp.",
    "--max-shard-size": "Weights are one file; transformers' save_pretrained cuts it.",
    "--no-examples": "Pages hold figures alone.",
    "--cost": "Use `--risk` and `--id-flagged`: promises instead of prices.",
    "--text-column": "Use --columns text=NAME.",
    "--label-column": "Use --columns label=NAME.",
    "--private": "Use `hf upload --private REPO DIR`.",
    "--parents": "`inspect CKPT --commands` prints how it was made: run that, and compare hashes.",
    "--again": "`inspect CKPT --commands` prints how it was made: run that, and compare hashes.",
    "--signature": "Use `model_signing verify`.",
    "--public-key": "Use `model_signing verify`.",
    "--member": "Export the member itself, or its hydra as a graph.",
    "--check-only": "Use `export --check D` on the machine where the graph runs.",
    "--card": "Use huggingface_hub.EvalResult; the guide to evaluating has an example.",
    "build --candidates": "Smaller models, means and probes are tried: it takes no number.",
    "build --criteria": "Smaller models are cut by taylor; `prune --method` cuts by others.",
    "build --search": "No circuits are searched; use `score --method circuit --search`.",
    "build --score-limit": "1,000 samples of TRAIN score heads and repair layers.",
    "build --max-drop": "OOD data may cost half a point of accuracy.",
    "build --track": "Tune models with `finetune --track`, and build of them.",
    "bench --compile": "Nothing else runs compiled models.",
    "build --members": "VAL says how many; `fuse` makes a hydra of so many.",
    "build --calibrate": "It always is; `calibrate` replaces the decision state.",
    "build --no-calibrate": "`calibrate` replaces the decision state.",
    "build --plot": "Use `eval FRONT/*.safetensors --data TEST --html F`.",
}


def instead(command: str, option: str) -> str | None:
    """What to use instead of an option of a command."""
    return GONE.get(f"{command} {option}", GONE.get(option))
