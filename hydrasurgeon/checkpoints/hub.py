"""Checkpoints by hub id (`timm:`, `hf:`, …), through huggingface_hub and its cache; `demo:` ships with the package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families import config_files, families, family_of_bare, family_of_scheme
from hydrasurgeon.families.base import TEXTS, BareCheckpoint
from hydrasurgeon.files.untrusted import read_json
from hydrasurgeon.lookup import did_you_mean

# A config with the labels of 22,000 classes has 2 MB.
MAX_CONFIG = 16 << 20
# A branch, a tag, a commit or a pull request's ref; it becomes a part of a path in the cache.
REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


DEMO = "demo"
"""Scheme of the checkpoints that the package ships."""


def is_hub_id(spec: str) -> bool:
    """Return True if the scheme of a family, or `demo:`, stands in front."""
    scheme, colon, _ = spec.partition(":")
    return bool(colon) and (scheme == DEMO or family_of_scheme(scheme) is not None)


def demo_path(spec: str) -> Path:
    """Return the file of a checkpoint that the package ships, `demo:NAME`."""
    folder = Path(str(files("hydrasurgeon") / DEMO))
    names = sorted(path.stem for path in folder.glob("*.safetensors"))
    name = spec.partition(":")[2]
    if name not in names:
        raise CheckpointError(
            f"{spec}: no such demo model{did_you_mean(name, names, 'demo:{}'.format)}",
            hint=f"There are {', '.join(f'demo:{name}' for name in names)}.",
        )
    return folder / f"{name}.safetensors"


def pinned(spec: str, path: Path) -> str:
    """Return the id with its commit, which the cache uses as the name of the snapshot's folder."""
    if path.parent.name != "snapshots":
        return spec
    return f"{spec.partition('@')[0]}@{path.name}"


def network_errors() -> tuple[type[Exception], ...]:
    """Return the errors that huggingface_hub and its HTTP library raise when the hub is out of
    reach.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return tuple({OSError, *HfHubHTTPError.__bases__})


def _check(folder: Path, spec: str) -> None:
    """Refuse a model by its config, unless a manifest says that it is one of ours."""
    if (folder / "heads.json").exists():
        return
    name = next((name for name in config_files() if (folder / name).exists()), None)
    config = None if name is None else read_json(folder / name, most=MAX_CONFIG)
    if isinstance(config, dict):
        family_of_bare(BareCheckpoint({}, spec, config=config), config_file=name).check_config(
            config, spec
        )


def fetch(spec: str) -> Path:
    """Download the repository behind a hub id, or find it in the cache; `@revision` may follow."""
    scheme, _, rest = spec.partition(":")
    if scheme == DEMO:
        return demo_path(spec)
    family = family_of_scheme(scheme)
    assert family is not None  # is_hub_id
    name, _, revision = rest.partition("@")
    if revision and not REVISION.fullmatch(revision):
        raise CheckpointError(
            f"{spec}: {revision!r} is not a revision", hint="Give a branch, a tag or a commit."
        )
    repo = family.repository(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def download(patterns: Sequence[str]) -> Path:
        return Path(
            snapshot_download(repo, revision=revision or None, allow_patterns=list(patterns))
        )

    expected: tuple[type[Exception], ...] = (ValueError, *network_errors())
    try:
        if family.refuses_by_config:
            _check(download(TEXTS), spec)  # before gigabytes of a model that cannot be cut
        return download(family.downloads)
    except expected as error:
        examples = ", ".join(dict.fromkeys(f.example_id for f in families() if f.example_id))
        reasons: dict[type[Exception], tuple[str, str | None]] = {
            GatedRepoError: (
                f"{repo} is gated",
                "Ask for access, then log in with `hf auth login`.",
            ),
            RevisionNotFoundError: (f"{repo} has no revision {revision!r}", None),
            RepositoryNotFoundError: (
                f"the hub has no {repo} (or it is private)",
                "Check the spelling; set HF_TOKEN for private ones.",
            ),
            ValueError: (f"{repo!r} is not a repository name", f"Write one of {examples}."),
        }
        refused = ("the hub does not know the token", "Log in again with `hf auth login`.")
        away = (
            f"{repo} is not in the cache and the hub cannot be reached",
            "Connect once, or give a local path.",
        )
        status = getattr(getattr(error, "response", None), "status_code", None)
        usual = refused if status == 401 else away
        why, hint = next(
            (reason for kind, reason in reasons.items() if isinstance(error, kind)), usual
        )
        raise CheckpointError(f"{spec}: {why}", hint=hint) from error
