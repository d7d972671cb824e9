"""Tiny checkpoints and data, made on the spot."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from any_labels import any_labels
from cached import once
from hypothesis import settings
from safetensors.torch import save_file

# What tests expect is what the CPU answers, on machines with a GPU too.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Tests import onnxruntime themselves: no run of theirs is reported to anyone.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# How long an example takes says more about the machine than about the code.
settings.register_profile("hydrasurgeon", deadline=None, max_examples=50)
settings.load_profile("hydrasurgeon")

ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=5"


# Files of tests need not survive a power cut; tests of that replace it themselves.
os.fsync = lambda _: None


def pytest_configure(config: pytest.Config) -> None:
    """Notes are warnings in Python, which tests ask for where they mean them."""
    config.addinivalue_line("filterwarnings", "ignore::hydrasurgeon.errors.HydraWarning")


def pytest_collection_finish() -> None:
    """What the tests import stays; the garbage collector need not look through it again and again."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Before extensions count what they think has leaked."""
    gc.unfreeze()


@pytest.fixture
def labels_need_not_fit() -> Iterator[None]:
    """For models that cannot be taught: of class names, and members that were moved."""
    with any_labels():
        yield


@pytest.fixture(scope="session", autouse=True)
def _graphs_stay_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["HYDRASURGEON_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Write a random three-layer ViT with four heads as a checkpoint with a manifest."""

    def make(name: str = "vit.safetensors", seed: int = 0, arch: str = ARCH) -> Path:
        from random_models import fresh

        path = tmp_path / name
        init = partial(fresh, f"init:{arch}", path, seed=seed)
        once(("tiny", name, arch, seed), tmp_path, lambda _: init())
        return path

    return make


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def own_module_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies modelling files of directories into a cache of the user's, and keeps what it imported."""
    import transformers.dynamic_module_utils as dynamic

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(
        sys,
        "path",
        [path for path in sys.path if not (Path(path) / "transformers_modules").is_dir()],
    )
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., Path]:
    """Write a stock timm ViT as a bare file, as people have it."""

    def make(
        name: str = "vit.safetensors",
        arch: str = "vit_tiny_patch16_224",
        seed: int = 0,
        **args: object,
    ) -> Path:
        import timm

        torch.manual_seed(seed)
        model = timm.create_model(arch, pretrained=False, **args)
        path = tmp_path / name
        save_file(model.state_dict(), path, metadata={"format": "pt"})
        return path

    return make


@pytest.fixture
def images(tmp_path: Path) -> Callable[..., str]:
    """Write labelled 28×28 images whose class shows in a bright row band, and return the spec."""

    def make(
        name: str = "data.npz", rows: int = 40, classes: int = 5, seed: int = 0, labels: bool = True
    ) -> str:
        rng = np.random.default_rng(seed)
        truth = np.arange(rows) % classes
        pixels = rng.integers(0, 120, (rows, 28, 28), dtype=np.uint8)
        for i, label in enumerate(truth):
            pixels[i, 5 * label : 5 * label + 5] = 220
        arrays = {"images": pixels} | ({"labels": truth.astype(np.int64)} if labels else {})
        path = tmp_path / name
        np.savez(path, **arrays)
        return str(path)

    return make
