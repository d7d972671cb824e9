"""`eval --log`: each result as a run of an experiment tracker, with the settings and every number
of the report.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import did_you_mean, need
from hydrasurgeon.measuring.asserts import paths_of
from hydrasurgeon.measuring.results import Report

PROJECT = "hydrasurgeon"
"""What the project, or experiment, is called where none is named."""
TRACKERS = ("wandb", "mlflow", "trackio")
"""Trackers, by the names of their clients; trackio's functions are called as wandb's are."""
UNNAMEABLE = re.compile(r"[^\w. :/-]")
"""What no tracker takes in the name of a number."""
SILENCE = "MLFLOW_DISABLE_TELEMETRY"
"""What keeps mlflow from reporting its use to its maker; what the user's environment says stays."""
MAX_RUN = 120
"""Characters of a run's name; some trackers refuse longer ones."""


def tracker_of(text: str | None) -> tuple[str, str] | None:
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
    return name, project or PROJECT


def log_report(tracker: tuple[str, str], report: Report) -> None:
    """A run for each result; what a client raises becomes one message."""
    name, project = tracker
    os.environ.setdefault(SILENCE, "true")
    settings = {key: str(value) for key, value in report.settings.items() if value is not None}
    for result in report.results:
        run = visible(result.name)[:MAX_RUN]
        numbers = {
            UNNAMEABLE.sub("_", path.replace(".", "/")): float(value)
            for path, value in paths_of(result).items()
            if value is not None
        }
        try:
            with redirect_stdout(sys.stderr):  # stdout may be the report as JSON
                _log(import_module(name), project, run, {**settings, "kind": result.kind}, numbers)
        except Exception as error:  # each client has kinds of its own
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"--log {name}: {visible(result.name)} could not be logged ({visible(why)})",
                hint="All else that was asked for is written.",
            ) from error


def _log(
    client: Any, project: str, run: str, settings: dict[str, str], numbers: dict[str, float]
) -> None:
    if client.__name__ == "mlflow":
        client.set_experiment(project)
        with client.start_run(run_name=run):
            client.log_params(settings)
            client.log_metrics(numbers)
        return
    client.init(project=project, name=run, config=settings)
    client.log(numbers)
    client.finish()
