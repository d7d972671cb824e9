"""Checkpoints by hub id (`timm:`, `hf:`, `open_clip:`), through huggingface_hub and its cache."""

from __future__ import annotations

import re
from pathlib import Path

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.foreign import read_json

__all__ = [
    "MAX_CONFIG",
    "SCHEMES",
    "SCHEME_OF",
    "fetch",
    "network_errors",
    "pinned",
    "refused_token",
]

SCHEME_OF = {"timm": "timm", "transformers": "hf", "open_clip": "open_clip"}
SCHEMES = tuple(SCHEME_OF.values())
# Not `*.safetensors`: OpenCLIP's repositories hold transformers' weights of the same model too.
CLIP_PATTERNS = ["open_clip_model.safetensors", "open_clip_config.json", "heads.json"]
TEXTS = ["*.json", "*.txt", "*.model"]
PATTERNS = ["*.safetensors", *TEXTS]
# A config with the labels of 22,000 classes has 2 MB.
MAX_CONFIG = 16 << 20
# A branch, a tag, a commit or a pull request's ref; it becomes a part of a path in the cache.
REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


def pinned(spec: str, path: Path) -> str:
    """The id with the commit it was resolved to (the cache calls the snapshot's folder by it)."""
    if path.parent.name != "snapshots":
        return spec
    return f"{spec.partition('@')[0]}@{path.name}"


def _repository(scheme: str, name: str) -> str:
    """The repository behind a name that is the library's own."""
    if scheme == "timm" and "/" not in name:
        return (
            f"timm/{name}"  # where vit_base_patch16_224.augreg2_in21k_ft_in1k and the others live
        )
    if scheme == "open_clip":
        from open_clip.pretrained import get_pretrained_cfg

        model, _, tag = name.partition("/")
        listed = str(get_pretrained_cfg(model, tag).get("hf_hub") or name)
        return "/".join(listed.split("/")[:2])  # a file's name may follow
    return name


def network_errors() -> tuple[type[Exception], ...]:
    """What huggingface_hub raises when the hub is out of reach: its HTTP library's errors, whichever that is, too."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple({OSError, *HfHubHTTPError.__bases__})


def refused_token(error: Exception) -> bool:
    """Whether the hub answered that it does not know the token."""
    return getattr(getattr(error, "response", None), "status_code", None) == 401


def _check(folder: Path, spec: str) -> None:
    """Refuse a transformers model by its config.json, unless a manifest says that it is one of ours."""
    from hydrasurgeon.families.hf_encoder.family import check_config

    path = folder / "config.json"
    if (folder / "heads.json").exists() or not path.exists():
        return
    config = read_json(path, most=MAX_CONFIG)
    foreign = (folder / "open_clip_config.json").exists()
    if isinstance(config, dict) and "model_type" in config and not foreign:
        check_config(config, spec)


def fetch(spec: str) -> Path:
    """Download (or find in the cache) the repository behind a hub id; `@revision` may follow."""
    scheme, _, rest = spec.partition(":")
    name, _, revision = rest.partition("@")
    if revision and not REVISION.fullmatch(revision):
        raise CheckpointError(
            f"{spec}: {revision!r} is not a revision", hint="Give a branch, a tag or a commit."
        )
    repo = _repository(scheme, name)
    patterns = CLIP_PATTERNS if scheme == "open_clip" else PATTERNS
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def download(patterns: list[str]) -> Path:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=patterns))

    try:
        if scheme == "hf":
            _check(download(TEXTS), spec)  # before gigabytes of a model that cannot be cut
        return download(patterns)
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
            hint="Write timm:vit_base_patch16_224.augreg_in21k, hf:google-bert/bert-base-uncased or open_clip:ViT-B-32/laion2b_s34b_b79k.",
        ) from error
    except network_errors() as error:
        if refused_token(error):
            raise CheckpointError(
                f"{spec}: the hub does not know the token",
                hint="Log in again with `hf auth login`.",
            ) from error
        raise CheckpointError(
            f"{spec}: {repo} is not in the cache and the hub cannot be reached",
            hint="Connect once, or give a local path.",
        ) from error
