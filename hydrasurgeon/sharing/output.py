"""Where a result goes: a file or a directory that is this command's to write, and a repository of
the hub.

What is uploaded is the family's directory layout, as one commit.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.card import CARD, on_hub
from hydrasurgeon.checkpoints.hub import network_errors, refused_token
from hydrasurgeon.checkpoints.writing import (
    claim_checkpoint,
    save,
    shard_size,
    texts_beside,
    weight_files,
    weights_name,
)
from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.manifest import Manifest, ManifestT, sidecar
from hydrasurgeon.files.tensors import Planned, TensorFile, Tensors
from hydrasurgeon.options.shared import Output

LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write."
"""What to do about a token."""


@dataclass(frozen=True)
class Target:
    """A place that is this command's to write."""

    path: Path
    shard: int | None
    """Bytes of weights in one file of a directory."""
    repository: str | None
    """Where on the hub the result goes too; its name and the token have been checked."""
    private: bool = False
    bars: bool = False
    """Whether the progress of an upload is shown."""

    def save(
        self,
        planned: Sequence[Planned],
        manifest: Callable[[str], ManifestT],
        *,
        files: Mapping[str, str],
    ) -> ManifestT:
        """Write weights, manifest and companions, all or nothing."""
        return save(self.path, planned, manifest, files=files, shard=self.shard)

    def publish(self, manifest: Manifest, files: Mapping[str, str]) -> str | None:
        """Upload what was written, if anywhere; the repository's address."""
        if self.repository is None:
            return None
        name, path = self.repository, self.path
        texts = texts_beside(manifest, files)
        texts[CARD] = _card_on_hub(texts[CARD], manifest, name)
        if path.is_dir():
            again = f"Upload it with `hf upload {name} {path}`."
        elif manifest.kind == "hydra":
            again = "Repeat the command with --force."
        else:
            mask = sidecar(path)
            again = (
                f"Push it with `hydrasurgeon prune {path} --mask {mask} -o DIR/ --push-to-hub "
                f"{name}`."
            )
        with _weights(path, manifest) as weights:
            content = {**{file: text.encode() for file, text in texts.items()}, **weights}
            address = _commit(
                name,
                content,
                manifest.history[-1].command,
                path,
                again,
                bars=self.bars,
                private=self.private,
            )
        if path.is_dir():
            write_text(path / CARD, texts[CARD])  # here and there alike
        return address


def claimed(arguments: Output, out: str | Path, *, bars: bool = False) -> Target:
    """`-o`, held until the command ends, and the repository; refused before any work if either
    cannot be written.
    """
    name = arguments.push_to_hub
    repository = None if name is None else _checked(name, private=arguments.private)
    path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    return Target(
        path, shard_size(arguments.max_shard_size, path), repository, arguments.private, bars
    )


def card_repository(name: str | None, cards: Sequence[Path | None]) -> str | None:
    """The repository that gets the one model card of a run; refused before any work too."""
    if name is None:
        return None
    count = len([card for card in cards if card is not None])
    if count != 1:
        raise UsageError(
            f"--push-to-hub {name}: eval uploads one model card, there are {count}",
            hint="Give one directory in a run.",
        )
    return _checked(name, private=False, exists=True)


def _checked(name: str, *, private: bool, exists: bool = False) -> str:
    """The repository behind `--push-to-hub`."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    option = f"--push-to-hub {name}"
    if get_token() is None:
        raise UsageError("--push-to-hub: there is no token for the hub", hint=LOGIN)
    with _refused(
        UsageError, option, "Nothing was done; without --push-to-hub the work needs no hub."
    ):
        api, wrong = HfApi(), None
        try:
            validate_repo_id(name)
            api.whoami()
            there = (private or exists) and api.repo_exists(name)
            if exists and not there:
                wrong = "there is no such repository on the hub; push the checkpoint first"
            # A repository that is there keeps its visibility, whatever creating it again asks for.
            elif private and there and not api.model_info(name).private:
                wrong = "with --private: this repository is public already"
        except HFValidationError:
            wrong = "not a repository name"
        if wrong is not None or name.count("/") != 1:
            raise UsageError(
                f"{option}: {wrong or 'not a repository name'}",
                hint="Write OWNER/NAME of another one.",
            )
    return name


def publish_card(written: Sequence[Path], manifest: Manifest, *, at: str, bars: bool) -> str:
    """Upload a directory's model card and what else `eval --card` wrote there; the repository's
    address.
    """
    card = next(path for path in written if path.name == CARD)
    text = _card_on_hub(card.read_text(encoding="utf-8"), manifest, at)
    names: dict[str, Path] = {path.relative_to(card.parent).as_posix(): path for path in written}
    include = " ".join(f"--include '{name}'" for name in names)
    again = f"Upload it with `hf upload {at} {card.parent} . {include}`."
    address = _commit(at, {**names, CARD: text.encode()}, "eval", card, again, bars=bars)
    write_text(card, text)  # here and there alike
    return address


def _card_on_hub(card: str, manifest: Manifest, name: str) -> str:
    family = family_of(manifest.model)
    return on_hub(card, scheme=family.scheme or family.name, repo=name)


def _commit(
    at: str,
    content: Mapping[str, Any],
    what: str,
    written: Path,
    again: str,
    *,
    bars: bool,
    private: bool = False,
) -> str:
    """Upload files (their paths or bytes, by name) as one commit; the repository's address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )  # type: ignore[attr-defined]

    api = HfApi()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            _refused(
                OutputError, f"{at}: was not uploaded, but {written} is written and stays", again
            )
        )
        if not bars and not are_progress_bars_disabled():
            disable_progress_bars()
            stack.callback(enable_progress_bars)
        address = api.create_repo(at, private=private or None, exist_ok=True)
        operations = [CommitOperationAdd(name, each) for name, each in content.items()]
        api.create_commit(at, operations, commit_message=f"hydrasurgeon {what}")
    return str(address)


@contextlib.contextmanager
def _weights(path: Path, manifest: Manifest) -> Iterator[dict[str, Path]]:
    """What holds the weights, by the names it has in a directory."""
    if path.is_dir():
        yield {file.name: file for file in weight_files(path)}
    elif manifest.decision is None or manifest.decision.ood.width is None:
        yield {weights_name(manifest): path}
    else:
        # The tensors of a decision state lie beside the model's there.
        with tempfile.TemporaryDirectory(prefix="hydrasurgeon-") as scratch:
            folder = Path(scratch) / "upload"
            save(folder, Tensors([TensorFile(path)]).planned(), lambda _: manifest)
            yield {file.name: file for file in weight_files(folder)}


@contextlib.contextmanager
def _refused(kind: type[UsageError], what: str, hint: str) -> Iterator[None]:
    """What the hub answers, as one message: what happened, and why."""
    from huggingface_hub.errors import HfHubHTTPError

    # RuntimeError is hf_xet's word for a transfer that broke off.
    failures: tuple[type[Exception], ...] = (HfHubHTTPError, *network_errors(), RuntimeError)
    try:
        yield
    except failures as error:
        answer = (str(error).strip() or type(error).__name__).splitlines()[0]
        why = f"the hub cannot be reached: {answer}"
        if isinstance(error, HfHubHTTPError):
            answer = (error.server_message or answer).strip().splitlines()[0]
            why = f"the hub answers: {answer}"
            if refused_token(error):
                why, hint = "the hub does not know the token", f"{LOGIN} {hint}"
            elif error.response.status_code == 403:
                why = f"the token may not write there: {answer}"
        raise kind(f"{what} ({why})", hint=hint) from error
