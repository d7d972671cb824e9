"""Checkpoints by hub id (`timm:`, `hf:`, `open_clip:`), through huggingface_hub and its cache."""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.errors import CheckpointError

__all__ = ["SCHEMES", "fetch", "pinned"]

SCHEMES = ("timm", "hf", "open_clip")
PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "heads.json"]


def pinned(spec: str, path: Path) -> str:
    """The id with the commit it was resolved to (the cache calls the snapshot's folder by it)."""
    if path.parent.name != "snapshots":
        return spec
    return f"{spec.partition('@')[0]}@{path.name}"


def fetch(spec: str) -> Path:
    """Download (or find in the cache) the repository behind a hub id; `@revision` may follow."""
    scheme, _, rest = spec.partition(":")
    name, _, revision = rest.partition("@")
    # timm's own names (vit_base_patch16_224.augreg2_in21k_ft_in1k) live under the timm organisation.
    repo = f"timm/{name}" if scheme == "timm" and "/" not in name else name
    if scheme == "open_clip":
        raise CheckpointError(
            f"{spec}: open_clip checkpoints are not supported yet",
            hint="Supported: timm:NAME and hf:NAME.",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=PATTERNS))
    except GatedRepoError as error:
        raise CheckpointError(
            f"{spec}: {repo} is gated", hint="Ask for access, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{spec}: {repo} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{spec}: the hub has no {repo} (or it is private)",
            hint="Check the spelling; set HF_TOKEN for private repositories.",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{spec}: {repo!r} is not a repository name",
            hint="Write timm:vit_base_patch16_224.augreg_in21k or hf:google-bert/bert-base-uncased.",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{spec}: {repo} is not in the cache and the hub cannot be reached",
            hint="Connect once, or give a local path.",
        ) from error
