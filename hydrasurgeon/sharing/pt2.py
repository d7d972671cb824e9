"""Captured graphs → .pt2: torch.export's own file, or a package that AOTInductor compiled for this machine; proven to
answer alike."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.errors import CheckFailed, MissingDependency
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.sharing.onnx import TOLERANCE, Exported
from hydrasurgeon.sharing.program import Captured, about, captured_program, differences
from hydrasurgeon.sharing.trial import Answer, by_name

ABOUT = "hydrasurgeon.json"
"""The extra file in a .pt2 that tells labels, thresholds and weights."""

NO_CUDA = "No CUDA runtime is found"
"""How the warning begins that a torch built with CUDA logs where there is no GPU."""


def to_pt2(model: Classifier, *, aot: bool) -> Exported:
    """A .pt2 with a dynamic batch (and text length), read back and proven to give torch's outputs."""
    with captured_program(model) as captured, contextlib.ExitStack() as held:
        if aot:
            path = Path(held.enter_context(tempfile.TemporaryDirectory())) / "model.pt2"
            run = _compiled(captured, path)
            content = path.read_bytes()
        else:
            content, run = _saved(captured)
        worst = _difference(run, captured)
        return Exported(content, captured.inputs, captured.outputs, worst)


def check_compiler() -> None:
    """Refuse before any work is done when there is nothing to compile with."""
    command = os.environ.get("CXX", "g++")
    if shutil.which(command) is None:
        raise MissingDependency(
            f"export --aot needs a C++ compiler, and there is no {command}",
            hint="Install one (CXX names it), or leave --aot out.",
        )


def _saved(captured: Captured) -> tuple[bytes, Callable[..., Any]]:
    import json

    facts = json.dumps(about(captured.model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own serialiser
        # In memory: on a full disk torch's writer ends the process.
        made = io.BytesIO()
        torch.export.save(captured.program, made, extra_files={ABOUT: facts})
        content = made.getvalue()
        read: Callable[..., Any] = torch.export.load(io.BytesIO(content)).module()
    return content, read


@contextlib.contextmanager
def without_cuda_warning() -> Iterator[None]:
    """A machine without a GPU compiles for its processor, and is not warned that there is no CUDA."""
    # By name: its module warns while it is imported.
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(_says_more)
    try:
        yield
    finally:
        logger.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(NO_CUDA)


def _compiled(captured: Captured, path: Path) -> Callable[..., Any]:
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    with without_cuda_warning(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        aoti_compile_and_package(
            captured.program, package_path=str(path), inductor_configs={"aot_inductor.metadata": about(captured.model)}
        )
        read: Callable[..., Any] = aoti_load_package(str(path))
    return read


def in_a_program(made: Exported, compiled_at: Path | None = None) -> Answer:
    """The answers of the file's bytes; those of a compiled package are laid at `compiled_at`, where they are read
    from."""
    if compiled_at is not None:
        from torch._inductor import aoti_load_package

        compiled_at.write_bytes(made.content)
        run: Callable[..., Any] = aoti_load_package(str(compiled_at))
    else:
        run = torch.export.load(io.BytesIO(made.content)).module()

    @torch.inference_mode()
    def answer(inputs: Any) -> tuple[Tensor, Tensor | None]:
        named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
        return by_name(made.outputs, run(*(named[name] for name in made.inputs)))

    return answer


def _difference(run: Callable[..., Any], captured: Captured) -> float:
    def outputs(inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        with torch.inference_mode():
            made: Sequence[Tensor] = run(*inputs.values())
        return made

    worst = float(differences(captured, outputs).max())
    if not worst <= TOLERANCE:
        raise CheckFailed(
            f"export: the .pt2's outputs differ from the model's by {worst:.3g}; allowed is {TOLERANCE:g}",
            hint="Nothing was written.",
        )
    return worst
