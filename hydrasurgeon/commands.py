"""The commands: what each is called, where its options, its work and its view are, two examples.

Places are named, not imported: no help page needs torch, and no history the command line.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hydrasurgeon.lookup import imported

SURGERY, ANSWERS, FILES, MORE = GROUPS = (
    "The surgery, stage by stage",
    "From a model and labelled data to answers",
    "Files and machines",
    "More",
)
"""The groups of commands, in the order in which they are listed."""


class Command(NamedTuple):
    """One command."""

    name: str
    group: str
    examples: tuple[str, ...]
    """Words behind its name; the examples of all commands run in one folder, in this order."""
    record: str = ""
    """Its options, `module:class` in hydrasurgeon.options; empty where the command line alone has
    it.
    """
    stage: str = ""
    """Function that does the work, `module:function` in hydrasurgeon.stages."""
    view: str = ""
    """The function in hydrasurgeon.render that shows the result."""
    recorded: bool = False
    """True if it makes a checkpoint, whose history then has a step of it."""
    in_python: bool = True
    """True if the stage is one of the package's public functions."""

    @property
    def options(self) -> Any:
        """The class of its options."""
        return imported(f"hydrasurgeon.options.{self.record}")

    @property
    def place(self) -> str:
        return f"hydrasurgeon.stages.{self.stage}"

    @property
    def function(self) -> str:
        """The stage's name in Python."""
        return self.stage.partition(":")[2]


COMMANDS = (
    Command(
        "score",
        SURGERY,
        (
            "vit --method taylor --data val/",
            "vit --method circuit --objective acc --search attribution --data val/ --limit 500 "
            "-o scored.safetensors",
        ),
        record="making:ScoreOptions",
        stage="score:score",
        view="scored",
        recorded=True,
    ),
    Command(
        "prune",
        SURGERY,
        (
            "vit --method taylor --keep 8 -o m1.safetensors",
            "vit --method taylor --sample 36/72 --seed 1 --compensate lstsq --data train/ "
            "-o m2.safetensors",
        ),
        record="making:PruneOptions",
        stage="prune:prune",
        view="pruned",
        recorded=True,
    ),
    Command(
        "finetune",
        SURGERY,
        (
            "m1 --data train/ --val val/ --freeze mlp -o t1.safetensors",
            "m2 --data train/ --teacher vit --recipe teach --freeze mlp -o t2.safetensors",
        ),
        record="making:FinetuneOptions",
        stage="finetune:finetune",
        view="finetuned",
        recorded=True,
    ),
    Command(
        "fuse",
        SURGERY,
        (
            "t1 t2 -o pair.safetensors",
            "m1 m2 --mlp separate --check val/ -o pair2.safetensors",
        ),
        record="making:FuseOptions",
        stage="fuse:fuse",
        view="fused",
        recorded=True,
    ),
    Command(
        "eval",
        SURGERY,
        (
            "vit pair --data test/ --ood far:others=others/",
            "vit pair deep=t1+t2 --data test/ --ci 0.95 --html report.html",
        ),
        record="measuring:EvaluateOptions",
        stage="evaluate:evaluate",
        view="evaluated",
    ),
    Command(
        "calibrate",
        ANSWERS,
        (
            "pair --data val/ -o ready.safetensors",
            "pair --data val/ --fit-data train/ --ood others/ --cascade -o ready2.safetensors",
        ),
        record="deciding:CalibrateOptions",
        stage="calibrate:calibrate",
        view="calibrated",
        recorded=True,
    ),
    Command(
        "predict",
        ANSWERS,
        ("ready --data test/ -o answers.jsonl", "ready --data test/ --limit 3"),
        record="deciding:PredictOptions",
        stage="predict:predict",
        view="predicted",
    ),
    Command(
        "build",
        ANSWERS,
        (
            "vit --data train/ --val val/ --budget macs=0.6 -o small.safetensors",
            "vit --data train/ --val val/ --ood others/ --budget time=0.3,0.5 -o front/",
        ),
        record="making:BuildOptions",
        stage="build:build",
        view="built",
    ),
    Command(
        "serve",
        ANSWERS,
        ("ready", "ready --host 0.0.0.0 --port 80 --cascade --answers answers.jsonl"),
        record="deciding:ServeOptions",
        stage="serve:serve",
        view="served",
        in_python=False,
    ),
    Command(
        "monitor",
        ANSWERS,
        ("answers.jsonl --against ready", "answers.jsonl --against ready --json"),
        record="deciding:MonitorOptions",
        stage="monitor:monitor",
        view="monitored",
        in_python=False,
    ),
    Command(
        "bench",
        FILES,
        ("pair --backbone vit --batch 1,16", "pair --vs t1 t2 --data test/"),
        record="measuring:BenchOptions",
        stage="bench:bench",
        view="benched",
    ),
    Command(
        "export",
        FILES,
        ("pair -o pair.onnx", "pair -o checked.onnx --check test/"),
        record="measuring:ExportOptions",
        stage="export:export",
        view="exported",
        recorded=True,
        in_python=False,
    ),
    Command(
        "inspect",
        FILES,
        ("pair", "pair --commands"),
        record="measuring:InspectOptions",
        stage="inspect:inspect",
        view="inspected",
        in_python=False,
    ),
    Command(
        "verify",
        FILES,
        ("pair", "m1 --json"),
        record="measuring:VerifyOptions",
        stage="verify:verify",
        view="verified",
    ),
    Command("demo", MORE, ("", "-o somewhere/"), in_python=False),
    Command("help", MORE, ("", "prune"), in_python=False),
)
"""All commands, in the order in which they are listed."""
NAMED = {command.name: command for command in COMMANDS}
"""Commands by name."""
RECORDED = {command.name: command for command in COMMANDS if command.recorded}
"""Commands that make checkpoints, which history records."""
