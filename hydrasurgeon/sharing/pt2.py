"""Captured graphs → .pt2: torch.export's own file, or a package that AOTInductor compiled for this
machine.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from hydrasurgeon.engines.program import Exported, Run, exported, silent
from hydrasurgeon.errors import MissingDependency
from hydrasurgeon.runtime.classifier import Classifier

Facts = Mapping[str, str]
ABOUT = "hydrasurgeon.json"
"""The extra file in a .pt2 that tells labels, thresholds and weights."""


def to_pt2(model: Classifier, *, aot: bool) -> Exported:
    """A .pt2 with a dynamic batch (and text length), read back and proven to give torch's outputs."""

    def write(
        program: ExportedProgram, inputs: Sequence[str], outputs: Any, facts: Facts
    ) -> tuple[bytes, Run]:
        with silent():
            content, call = (_compiled if aot else _saved)(program, facts)
        return content, torch.inference_mode()(
            lambda named: call(*(named[name] for name in inputs))
        )

    return exported(model, write, "the .pt2")


def check_compiler() -> None:
    """Refuse before any work is done when there is nothing to compile with."""
    command = os.environ.get("CXX", "g++")
    if shutil.which(command) is None:
        raise MissingDependency(
            f"export --aot needs a C++ compiler, and there is no {command}",
            hint="Install one (CXX names it), or leave --aot out.",
        )


def _saved(program: ExportedProgram, facts: Facts) -> tuple[bytes, Callable[..., Any]]:
    # In memory: on a full disk torch's writer ends the process.
    made = io.BytesIO()
    torch.export.save(program, made, extra_files={ABOUT: json.dumps(facts)})
    return made.getvalue(), torch.export.load(io.BytesIO(made.getvalue())).module()


def _compiled(program: ExportedProgram, facts: Facts) -> tuple[bytes, Callable[..., Any]]:
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        aoti_compile_and_package(
            program, package_path=str(path), inductor_configs={"aot_inductor.metadata": facts}
        )
        return path.read_bytes(), aoti_load_package(str(path))
