"""The commands: what each is called, where its options, its work and its view are, three examples.

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
    """Words behind its name; the examples of all commands run in the folder that `demo` leaves, in
    this order.
    """
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
            "backbone --method taylor --data demo:train --limit 1000 -o scored.safetensors",
            "backbone --method circuit --objective acc --search attribution --data demo:val --limit 500 -o circuit.safetensors",
            "vit --method magnitude",
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
            "vit --method taylor --keep 5",
            "vit --method taylor --sample 16/32 --seed 4 -o p4.safetensors",
            "vit --method taylor --keep 4 --neurons 0.5 --data demo:train --limit 1000 -o half.safetensors",
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
            "p4 --data demo:train --val demo:val --recipe demo -o m4.safetensors",
            "half --data demo:train --teacher vit --recipe teach --set epochs=1 -o student.safetensors",
            "vit --data demo:train --recipe probe -o probe.safetensors",
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
            "m1 m2 m4 -o trio.safetensors",
            "m1 m2 m3 --mlp separate --check demo:val -o exact.safetensors",
            "backbone seed-2 --mean -o pair.safetensors",
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
            "vit hydra --data demo:test --ood near:shirts=demo:near --ood far:digits=demo:digits",
            "vit hydra deep=m1+m2+m3 --data demo:test --ci 0.95 --html compared.html",
            "vit --data demo:val --predictions val.safetensors",
        ),
        record="measuring:EvaluateOptions",
        stage="evaluate:evaluate",
        view="evaluated",
    ),
    Command(
        "calibrate",
        ANSWERS,
        (
            "hydra --data demo:val --risk 0.05 -o ready.safetensors",
            "hydra --data demo:val --fit-data demo:train --ood demo:textures --cascade -o quick.safetensors",
            "--predictions val.safetensors -o decision.safetensors",
        ),
        record="deciding:CalibrateOptions",
        stage="calibrate:calibrate",
        view="calibrated",
        recorded=True,
    ),
    Command(
        "predict",
        ANSWERS,
        (
            "ready --data demo:test -o answers.jsonl",
            "ready --data demo:test --limit 3",
            "--decision decision.safetensors --predictions val.safetensors -o decided.csv",
        ),
        record="deciding:PredictOptions",
        stage="predict:predict",
        view="predicted",
    ),
    Command(
        "build",
        ANSWERS,
        (
            "backbone --data demo:train --val demo:val --budget macs=0.6 --max-minutes 2 -o small.safetensors",
            "backbone --data demo:train --risk 0.1 --dry-run -o chosen.safetensors",
            "backbone --data demo:train --val demo:val --ood demo:textures --budget time=0.3,0.5 -o front/",
        ),
        record="making:BuildOptions",
        stage="build:build",
        view="built",
    ),
    Command(
        "serve",
        ANSWERS,
        (
            "ready",
            "quick --cascade --answers live.jsonl",
            "ready --host 0.0.0.0 --port 8080 --token-env TOKEN",
        ),
        record="deciding:ServeOptions",
        stage="serve:serve",
        view="served",
        in_python=False,
    ),
    Command(
        "monitor",
        ANSWERS,
        (
            "answers.jsonl --against ready",
            "answers.jsonl --against ready --state nights.json",
            "answers.jsonl --against ready --json",
        ),
        record="deciding:MonitorOptions",
        stage="monitor:monitor",
        view="monitored",
        in_python=False,
    ),
    Command(
        "bench",
        FILES,
        (
            "hydra --backbone vit --batch 1,16",
            "hydra --vs m1 m2 m3 --data demo:test",
            "vit --engine all",
        ),
        record="measuring:BenchOptions",
        stage="bench:bench",
        view="benched",
    ),
    Command(
        "export",
        FILES,
        (
            "hydra -o hydra.onnx",
            "ready -o ready.onnx --check demo:test",
            "vit --format stock -o stock/",
        ),
        record="measuring:ExportOptions",
        stage="export:export",
        view="exported",
        recorded=True,
        in_python=False,
    ),
    Command(
        "inspect",
        FILES,
        (
            "hydra",
            "hydra --commands",
            "--schema",
        ),
        record="measuring:InspectOptions",
        stage="inspect:inspect",
        view="inspected",
        in_python=False,
    ),
    Command(
        "verify",
        FILES,
        (
            "hydra",
            "ready",
            "m1 --json",
        ),
        record="measuring:VerifyOptions",
        stage="verify:verify",
        view="verified",
    ),
    Command(
        "demo",
        MORE,
        (
            "",
            "-o somewhere/",
            "--force",
        ),
        in_python=False,
    ),
    Command(
        "help",
        MORE,
        (
            "",
            "prune",
            "build",
        ),
        in_python=False,
    ),
)
"""All commands, in the order in which they are listed."""
NAMED = {command.name: command for command in COMMANDS}
"""Commands by name."""
RECORDED = {command.name: command for command in COMMANDS if command.recorded}
"""Commands that make checkpoints, which history records."""
