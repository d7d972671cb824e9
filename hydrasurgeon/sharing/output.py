"""Where a result goes: a file or a directory that is this command's to write, and a repository of
the hub.

What is uploaded is the family's directory layout, as one commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.card import CARD, on_hub
from hydrasurgeon.checkpoints.hub import network_errors, refused_token
from hydrasurgeon.checkpoints.writing import (
    claim_checkpoint,
    save,
)
from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import SUFFIX, write_text
from hydrasurgeon.files.manifest import Manifest, ManifestT
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.options.shared import Output

LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write."
"""What to do about a token."""


@dataclass(frozen=True)
class Target:
    """A place that is this command's to write."""

    path: Path
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
        return save(self.path, planned, manifest, files=files)

    def publish(self, manifest: Manifest) -> str | None:
        """Upload the directory that was written, if anywhere; the repository's address."""
        if self.repository is None:
            return None
        name, path, family = self.repository, self.path, family_of(manifest.model)
        card = (path / CARD).read_text(encoding="utf-8")
        card = on_hub(card, scheme=family.scheme or family.name, repo=name)
        content: dict[str, Any] = {file.name: file for file in path.iterdir()}
        address = self._commit(
            {**content, CARD: card.encode()}, f"hydrasurgeon {manifest.history[-1].command}"
        )
        write_text(path / CARD, card)  # here and there alike
        return address

    def _commit(self, content: Mapping[str, Any], message: str) -> str:
        """Upload files (their paths or bytes, by name) as one commit; the repository's address."""
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.utils import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
        )  # type: ignore[attr-defined]

        api, name = HfApi(), str(self.repository)
        what = f"{name}: was not uploaded, but {self.path} is written and stays"
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                _refused(OutputError, what, f"Upload it with `hf upload {name} {self.path}`.")
            )
            if not self.bars and not are_progress_bars_disabled():
                disable_progress_bars()
                stack.callback(enable_progress_bars)
            address = api.create_repo(name, private=self.private or None, exist_ok=True)
            operations = [CommitOperationAdd(file, each) for file, each in content.items()]
            api.create_commit(name, operations, commit_message=message)
        return str(address)


def claimed(arguments: Output, out: str | Path, *, bars: bool = False) -> Target:
    """`-o`, held until the command ends, and the repository; refused before any work if either
    cannot be written.
    """
    name = arguments.push_to_hub
    repository = None if name is None else _checked(name, private=arguments.private)
    path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    if repository is not None and path.suffix == SUFFIX:
        raise UsageError("--push-to-hub requires a directory", hint="Give -o DIR/.")
    return Target(path, repository, arguments.private, bars)


def _checked(name: str, *, private: bool) -> str:
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
            # A repository that is there keeps its visibility, whatever creating it again asks for.
            if private and api.repo_exists(name) and not api.model_info(name).private:
                wrong = "with --private: this repository is public already"
        except HFValidationError:
            wrong = "not a repository name"
        if wrong is not None or name.count("/") != 1:
            raise UsageError(
                f"{option}: {wrong or 'not a repository name'}",
                hint="Write OWNER/NAME of another one.",
            )
    return name


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
