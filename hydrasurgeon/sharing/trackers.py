"""`eval --log`: the results as runs of an experiment tracker, one for each result, with the settings and every number
of the report."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import did_you_mean, need
from hydrasurgeon.measuring.asserts import paths_of
from hydrasurgeon.measuring.results import Report

PROJECT = "hydrasurgeon"
"""What the project, or experiment, is called where none is named."""
UNNAMEABLE = re.compile(r"[^\w. :/-]")
"""What no tracker takes in the name of a number."""
SILENCE = {"mlflow": "MLFLOW_DISABLE_TELEMETRY"}
"""What keeps a client from reporting its use to its maker; what the user's environment says stays."""
# Characters of a run's name; some trackers refuse longer ones.
MAX_RUN = 120

Numbers = Mapping[str, float]


def _wandb(client: Any, project: str, run: str, settings: Mapping[str, str], numbers: Numbers) -> None:
    client.init(project=project, name=run, config=dict(settings))
    client.log(dict(numbers))
    client.finish()


def _mlflow(client: Any, project: str, run: str, settings: Mapping[str, str], numbers: Numbers) -> None:
    client.set_experiment(project)
    with client.start_run(run_name=run):
        client.log_params(dict(settings))
        client.log_metrics(dict(numbers))


TRACKERS: dict[str, Callable[[Any, str, str, Mapping[str, str], Numbers], None]] = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    # Its functions are called as wandb's are.
    "trackio": _wandb,
}
"""Tracker → how a run is written with its client."""


@dataclass(frozen=True)
class Tracker:
    """Where results are logged."""

    name: str
    project: str


def tracker_of(text: str | None) -> Tracker | None:
    """`--log NAME[:PROJECT]`, refused where it is none or is not installed."""
    if text is None:
        return None
    name, colon, project = text.partition(":")
    if name not in TRACKERS or (colon and not project):
        raise UsageError(
            f"--log {visible(text)}: not NAME or NAME:PROJECT{did_you_mean(name, TRACKERS)}",
            hint=f"There are {', '.join(TRACKERS)}.",
        )
    need(name, purpose=f"--log {name}")
    return Tracker(name, project or PROJECT)


def log_report(tracker: Tracker, report: Report) -> None:
    """A run for each result; what a client raises becomes one message."""
    if tracker.name in SILENCE:
        os.environ.setdefault(SILENCE[tracker.name], "true")
    settings = {key: str(value) for key, value in report.settings.items() if value is not None}
    for result in report.results:
        name = result.name
        numbers = {
            UNNAMEABLE.sub("_", path.replace(".", "/")): float(value)
            for path, value in paths_of(result).items()
            if value is not None
        }
        try:
            # What a client prints is about its work: stdout may be the report as JSON.
            with redirect_stdout(sys.stderr):
                client = import_module(tracker.name)
                TRACKERS[tracker.name](
                    client, tracker.project, visible(name)[:MAX_RUN], {**settings, "kind": result.kind}, numbers
                )
        except Exception as error:  # each client has kinds of its own
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"--log {tracker.name}: {visible(name)} could not be logged ({visible(said)})",
                hint="All else that was asked for is written.",
            ) from error
