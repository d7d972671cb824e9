"""score: how much each head matters, written into the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Single, open_single, rewritten
from hydrasurgeon.checkpoints.class_names import named_by
from hydrasurgeon.checkpoints.writing import claim_checkpoint, claim_in_place, record_in_place, save
from hydrasurgeon.criteria import ScoreKey, clear, criterion, score_key
from hydrasurgeon.criteria.scoring import check_keep, compute
from hydrasurgeon.data.samples import left_out_note
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import Manifest, Score
from hydrasurgeon.files.torchrun import is_main_process, process_count
from hydrasurgeon.measuring import known
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import ScoreOptions

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples


@dataclass(frozen=True)
class Scored:
    """The scores of a checkpoint, and the file they were written to."""

    path: Path
    """The scored checkpoint, or its copy."""
    manifest: Manifest = field(repr=False)
    method: str
    notes: tuple[str, ...] = ()
    """Assumptions about the checkpoint."""
    written: Path | None = None
    """The file that holds the scores, where that is not `path`: beside weights without a manifest."""

    @property
    def result(self) -> Score:
        return self.manifest.scores[self.method]


@stage(ScoreOptions)
def score(arguments: ScoreOptions) -> Scored:
    """Score heads by a criterion and record the result in the checkpoint's manifest."""
    if process_count() == 1:
        return _score(arguments)
    from hydrasurgeon.runtime.processes import joined

    with joined():  # once: processes that part cannot meet again
        return _score(arguments)


def _score(arguments: ScoreOptions) -> Scored:
    key = score_key(arguments.method, arguments.objective)
    if arguments.part == "neurons":
        key = replace(key, part="neurons")
    method = criterion(key)
    check_keep(arguments.method, arguments.keep)
    opened, copy, samples = _opened(arguments, key)
    digests = opened.digests()
    target = copy or opened.path
    result, name = compute(opened, key, arguments, arguments, samples, output=target), str(key)
    record = opened.record(digests)
    data = result.data
    if samples is not None and data:
        seen = data[0].model_copy(update={"seen": known.record(samples).seen})
        data = (seen, *data[1:])
    uses = (*(("torch", opened.manifest.model.family) if method.needs_data else ()), *method.uses)
    args = {**arguments.recorded(), "method": name}
    entry = step("score", args=args, inputs=[record], data=data, seed=arguments.seed, uses=uses)
    base = opened.manifest
    # Scoring again by the same method replaces the entry: the weights do not depend on it.
    before = [s for s in base.history if (s.command, s.args.get("method")) != ("score", name)]

    def manifest(sha256: str) -> Manifest:
        history = (*before, entry.wrote(sha256))
        return rewritten(
            base, weights_sha256=sha256, scores={**base.scores, name: result}, history=history
        )

    if process_count() > 1:  # the first process replaces the file: it waits for the others
        from hydrasurgeon.runtime.processes import joined

        with joined() as world:
            world.gather(None)
    if not is_main_process():
        return Scored(target, manifest(record.sha256), name)
    place = target
    if copy is not None:
        final = save(copy, opened.tensors.planned(), manifest, files=opened.files)
    else:
        final = manifest(record.sha256)
        place = record_in_place(opened.path, opened.tensors.files[0], final)
    clear(key, target)
    notes = [opened.note, None if samples is None else left_out_note(samples)]
    if arguments.data is not None and samples is None:
        notes.append(f"{arguments.method} looks at no data: --data was not read")
    written_to = None if place == target else place
    return Scored(target, final, name, tuple(filter(None, notes)), written_to)


def _opened(arguments: ScoreOptions, key: ScoreKey) -> tuple[Single, Path | None, Samples | None]:
    """Open the checkpoint, its copy's path and its data, and claim the file that is written."""
    opened, copy = open_single(arguments.checkpoint, arch=arguments.arch), None
    if arguments.out is not None:
        copy = claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    elif opened.hub_id is not None:
        raise UsageError(
            f"{opened.hub_id}: is not your file, so scores cannot be written into it",
            hint="Give -o NAME.safetensors: a copy that carries them.",
        )
    else:
        claim_in_place(opened.path)
        # Another score may have ended just now.
        opened = open_single(arguments.checkpoint, arch=arguments.arch)
    samples = None
    if arguments.data is not None and criterion(key).needs_data:
        from hydrasurgeon.data import read_data

        samples = read_data(arguments.data, arguments)
    return named_by(opened, arguments, samples), copy, samples
