"""An architecture's name comes from the family's table: one that a file makes up reaches neither code nor a library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.hf_encoder.family import HFEncoder
from hydrasurgeon.files.manifest import parse_manifest, sidecar

CODE = 'BertForSequenceClassification"\nopen("{there}", "w")\nARCH = "BertForSequenceClassification'


def recorded(folder: Path, family: str) -> Path:
    """A pruned checkpoint with a manifest."""
    FAMILIES[family].write(folder / "stock")
    return hs.prune(folder / "stock", method="magnitude", keep=2, out=folder / "m.safetensors").path


def retold(path: Path, **model: Any) -> None:
    """The manifest in the header and beside it, with another model."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    manifest = json.loads(metadata["hydrasurgeon"])
    manifest["model"] |= model
    metadata["hydrasurgeon"] = json.dumps(manifest)
    save_file(load_file(path), path, metadata=metadata)
    sidecar(path).write_text(json.dumps(manifest))


def test_code_in_the_name_of_an_architecture_is_never_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path, "BERT")
    retold(path, arch=CODE.replace("{there}", str(tmp_path / "pwned")))
    assert (
        run(["prune", str(path), "--method", "magnitude", "--keep", "1", "-o", f"{tmp_path}/out/"])
        == 3
    )
    assert not (tmp_path / "out").exists()
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "arch"),
    [
        ("BERT", "RobertaForSequenceClassification"),  # another type's
        ("BERT", "AutoModel"),
        ("BERT", "utils"),
        ("BERT", "__name__"),
        ("ViT", "ViTModel"),
        ("timm ViT", "hf-hub:someone/model"),
        ("timm ViT", "local-dir:/tmp"),
        ("timm ViT", "resnet50"),
        ("timm ViT", "vit_tiny_patch16_224.\nevil"),
        ("timm ViT", "vit_tiny_patch16_224./../../x"),
        ("timm ViT", "vit_srelpos_small_patch16_224"),
        ("OpenCLIP", "hf-hub:someone/model"),
        ("OpenCLIP", "ViT-B-32\n# Pwned"),
    ],
)
def test_a_name_that_is_not_in_the_table_is_refused(tmp_path: Path, family: str, arch: str) -> None:
    path = recorded(tmp_path, family)
    retold(path, arch=arch)
    with pytest.raises(ManifestError) as refused:
        open_checkpoint(path)
    assert str(tmp_path) in refused.value.message


def test_the_modelling_file_holds_the_tables_spelling(tmp_path: Path) -> None:
    """Even of a manifest that nobody checked."""
    path = recorded(tmp_path, "BERT")
    manifest = parse_manifest(sidecar(path).read_text(), "here")
    family = HFEncoder()
    code = family.directory(manifest)["modeling_hydrasurgeon.py"]
    assert 'ARCH = "BertForSequenceClassification"\n' in code
    evil = manifest.model.model_copy(update={"arch": CODE})
    with pytest.raises(ValueError, match="not in tuple"):
        family.directory(manifest.model_copy(update={"model": evil}))
