"""`--push-to-hub`: a result in its family's directory layout, as one commit of a hub repository."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.card import CARD, on_hub
from hydrasurgeon.checkpoints.hub import network_errors, refused_token
from hydrasurgeon.checkpoints.writing import save, texts_beside, weight_files, weights_name
from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.manifest import Manifest, sidecar
from hydrasurgeon.files.tensors import TensorFile, Tensors

LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write."
"""What to do about a token."""


@dataclass(frozen=True)
class Repository:
    """Where a result goes once it is written; the token and the name have been checked."""

    name: str
    private: bool


def destination(name: str | None, *, private: bool) -> Repository | None:
    """The repository behind `--push-to-hub`; refused here, before any work, if nothing could be written to it."""
    if name is None:
        if private:
            raise UsageError("--private: says something only about --push-to-hub")
        return None
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
        valid = name.count("/") == 1
    except HFValidationError:
        valid = False
    if not valid:
        raise UsageError(f"--push-to-hub {name}: not a repository name", hint="Write OWNER/NAME.")
    if get_token() is None:
        raise UsageError("--push-to-hub: there is no token for the hub", hint=LOGIN)
    hint = "Nothing was done; without --push-to-hub the work needs no hub."
    with _refused(UsageError, f"--push-to-hub {name}", hint):
        api = HfApi()
        api.whoami()
        # A repository that is there keeps its visibility, whatever creating it again asks for.
        if private and api.repo_exists(name) and not api.model_info(name).private:
            raise UsageError(
                f"--push-to-hub {name} --private: this repository is public already",
                hint="Make it private on the hub, or choose another name.",
            )
    return Repository(name, private)


def card_destination(name: str | None, cards: Sequence[Path | None]) -> Repository | None:
    """The repository that gets the one model card of a run; refused before any work, as `destination` does."""
    if name is not None and not any(cards):
        raise UsageError("--push-to-hub: eval uploads model cards", hint="Add --card.")
    at = destination(name, private=False)
    if at is None:
        return None
    if sum(card is not None for card in cards) > 1:
        raise UsageError(
            f"--push-to-hub {at.name}: there are several model cards, and one repository",
            hint="Give one directory in a run.",
        )
    from huggingface_hub import HfApi

    hint = "Push the checkpoint first, with --push-to-hub of the command that writes it."
    with _refused(UsageError, f"--push-to-hub {at.name}", hint):
        if not HfApi().repo_exists(at.name):
            raise UsageError(f"--push-to-hub {at.name}: there is no such repository on the hub", hint=hint)
    return at


def publish_card(written: Sequence[Path], manifest: Manifest, *, at: Repository, bars: bool) -> str:
    """Upload a directory's model card and what else `eval --card` wrote there, as one commit; the repository's
    address."""
    from huggingface_hub import CommitOperationAdd, HfApi

    card = next(path for path in written if path.name == CARD)
    family = family_of(manifest.model)
    text = on_hub(card.read_text(encoding="utf-8"), scheme=family.scheme or family.name, repo=at.name)
    names = {str(path.relative_to(card.parent).as_posix()): path for path in written}
    content: dict[str, Any] = {**names, CARD: text.encode()}
    what = f"{at.name}: was not uploaded, but {card} is written and stays"
    again = " ".join(f"--include '{name}'" for name in names)
    with (
        _refused(OutputError, what, f"Upload it with `hf upload {at.name} {card.parent} . {again}`."),
        _progress_bars(bars),
    ):
        commit = HfApi().create_commit(
            at.name,
            [CommitOperationAdd(name, each) for name, each in content.items()],
            commit_message="hydrasurgeon eval",
        )
    write_text(card, text)  # here and there alike
    return str(commit.repo_url)


def publish(
    target: Path, manifest: Manifest, files: Mapping[str, str], *, at: Repository | None, bars: bool
) -> str | None:
    """Upload what was written at `target`, a file or a directory, if anywhere; the repository's address."""
    if at is None:
        return None
    from huggingface_hub import CommitOperationAdd, HfApi

    family = family_of(manifest.model)
    texts = texts_beside(manifest, files)
    texts[CARD] = on_hub(texts[CARD], scheme=family.scheme or family.name, repo=at.name)
    content: dict[str, Any] = {name: text.encode() for name, text in texts.items()}
    api = HfApi()
    what = f"{at.name}: was not uploaded, but {target} is written and stays"
    with (
        _weights(target, manifest) as weights,
        _refused(OutputError, what, _again(target, manifest, at.name)),
        _progress_bars(bars),
    ):
        content |= weights
        address = api.create_repo(at.name, private=at.private or None, exist_ok=True)
        api.create_commit(
            at.name,
            [CommitOperationAdd(name, each) for name, each in content.items()],
            commit_message=f"hydrasurgeon {manifest.history[-1].command}",
        )
    if target.is_dir():
        write_text(target / CARD, texts[CARD])  # here and there alike
    return str(address)


@contextlib.contextmanager
def _weights(target: Path, manifest: Manifest) -> Iterator[dict[str, Path]]:
    """What holds the weights, by the names it has in a directory."""
    if target.is_dir():
        yield {path.name: path for path in weight_files(target)}
    elif manifest.decision is None or manifest.decision.ood.width is None:
        yield {weights_name(manifest): target}
    else:
        # The tensors of a decision state lie beside the model's there.
        planned = Tensors([TensorFile(target)]).planned()
        with tempfile.TemporaryDirectory(prefix="hydrasurgeon-") as scratch:
            folder = Path(scratch) / "upload"
            save(folder, planned, lambda _: manifest)
            yield {path.name: path for path in weight_files(folder)}


def _again(target: Path, manifest: Manifest, name: str) -> str:
    """How to upload what is written, without doing the work again."""
    if target.is_dir():
        return f"Upload it with `hf upload {name} {target}`."
    if manifest.kind == "hydra":
        return "Repeat the command with --force."
    mask = sidecar(target)
    return f"Push it with `hydrasurgeon prune {target} --mask {mask} -o DIR/ --push-to-hub {name}`."


@contextlib.contextmanager
def _refused(kind: type[UsageError], what: str, hint: str) -> Iterator[None]:
    """What the hub answers, as one message: what happened, and why."""
    from huggingface_hub.errors import HfHubHTTPError

    # RuntimeError is hf_xet's word for a transfer that broke off.
    unreachable: tuple[type[Exception], ...] = (*network_errors(), RuntimeError)
    try:
        yield
    except HfHubHTTPError as error:
        said = (error.server_message or str(error)).strip().splitlines()[0]
        why = f"the hub answers: {said}"
        if refused_token(error):
            why, hint = "the hub does not know the token", f"{LOGIN} {hint}"
        elif error.response.status_code == 403:
            why = f"the token may not write there: {said}"
        raise kind(f"{what} ({why})", hint=hint) from error
    except unreachable as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise kind(f"{what} (the hub cannot be reached: {said})", hint=hint) from error


@contextlib.contextmanager
def _progress_bars(wanted: bool) -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars  # type: ignore[attr-defined]

    if wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
