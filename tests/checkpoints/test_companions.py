"""Companions: a name in a file never becomes a path of the sender's choice, nor stands in for a file of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.checkpoints.writing import texts_beside
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families import family_of
from hydrasurgeon.families.hf_encoder.companions import load_tokenizer
from hydrasurgeon.files.manifest import Manifest

FOREIGN = (
    "../victim",
    "/tmp/victim",
    "",
    "tokenizer.json/../x",
    "config.json",
    "TOKENIZER.JSON",
    "vocab.txt\0",
    "..\\x",
)


def with_files(path: Path, files: object) -> Path:
    """The checkpoint with other companions in its header."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    text = files if isinstance(files, str) else json.dumps(files)
    save_file(load_file(path), path, metadata={**metadata, "hydrasurgeon.files": text})
    return path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    FAMILIES["BERT"].write(tmp_path / "bert")
    return hs.prune(tmp_path / "bert", method="random", keep=2, out=tmp_path / "b.safetensors").path


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_is_refused_before_anything_is_written(
    bert: Path, tmp_path: Path, name: str
) -> None:
    files = dict(open_checkpoint(bert).files)
    assert "tokenizer.json" in files
    with_files(bert, {**files, name: "attack"})
    before = sorted(tmp_path.rglob("*"))
    for use in (
        lambda: open_checkpoint(bert),
        lambda: hs.prune(bert, method="random", keep=1, out=f"{tmp_path}/out/"),
        lambda: hs.evaluate([bert], data=FAMILIES["BERT"].data(tmp_path)),
    ):
        with pytest.raises(CheckpointError, match="does not belong to") as refused:
            use()
        assert refused.value.exit_code == 3
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "data.jsonl"])


@pytest.mark.parametrize("name", ["tokenizer.json", "../victim"])
def test_families_without_companions_carry_none(tiny: Callable[..., Path], name: str) -> None:
    with pytest.raises(CheckpointError, match="does not belong to a timm model"):
        open_checkpoint(with_files(tiny(), {name: "x"}))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "not a JSON object of texts"),
        ({"tokenizer.json": 1}, "not a JSON object of texts"),
        ({"tokenizer.json": {"a": "b"}}, "not a JSON object of texts"),
        ("", "is empty"),
        ("{", "is not JSON"),
        ('{"vocab.txt": "a", "vocab.txt": "b"}', "occurs twice"),
        ('{"vocab.txt": "\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "nested more than 32 deep"),
    ],
)
def test_companions_that_are_no_texts(bert: Path, files: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(with_files(bert, files))


def test_companions_beside_the_weights(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "bert")
    tokenizer = tmp_path / "bert" / "tokenizer.json"
    content = tokenizer.read_bytes()
    tokenizer.write_bytes(b"\xff\xfe" + content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not UTF-8"):
        open_checkpoint(tmp_path / "bert")
    tokenizer.unlink()
    tokenizer.mkdir()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a regular file"):
        open_checkpoint(tmp_path / "bert")


def test_names_of_ours_are_on_no_familys_list(tmp_path: Path) -> None:
    """A directory's own files cannot be replaced by a companion, whatever a header says."""
    for name in ("BERT", "ViT", "timm ViT", "OpenCLIP"):
        FAMILIES[name].write(tmp_path / name)
        opened = open_checkpoint(tmp_path / name)
        made = texts_beside(opened.manifest, {})
        ours = {*made, "config.json", "open_clip_config.json", "modeling_hydrasurgeon.py"}
        companions = family_of(opened.manifest.model).companions(ours)
        assert set(companions) <= {"preprocessor_config.json"}
        for each in sorted(ours - set(companions)):
            with pytest.raises(CheckpointError, match="does not belong to"):
                texts_beside(opened.manifest, {each: "attack"})


def test_the_tokenizers_folder_takes_its_own_names_only(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    stock = transformers.AutoTokenizer.from_pretrained
    seen: list[str] = []

    def watched(folder: str, **options: object) -> object:
        seen.extend(sorted(p.name for p in Path(folder).iterdir()))
        return stock(folder, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", watched)
    victim = tmp_path / "victim"
    attack = dict.fromkeys((str(victim), "../victim", "config.json", "x.py"), "attack")
    _ = load_tokenizer({**open_checkpoint(bert).files, **attack}, "bert", 100)
    assert seen == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert not victim.exists()


def test_a_manifests_own_companions_travel(bert: Path, tmp_path: Path) -> None:
    files = open_checkpoint(bert).files
    made = hs.prune(bert, method="random", keep=1, out=f"{tmp_path}/out/")
    assert open_checkpoint(made.path).files == files
    assert isinstance(made.manifest, Manifest)


def test_a_companion_is_no_link_to_a_file_elsewhere(tmp_path: Path) -> None:
    """Its text would travel on in the header of what is written."""
    folder = tmp_path / "bert"
    FAMILIES["BERT"].write(folder)
    (tmp_path / "secret").write_text('{"key": 1}')
    config = folder / "tokenizer_config.json"
    text = config.read_text()
    config.unlink()
    config.symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: is a link"):
        hs.prune(folder, method="random", keep=2, out=tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    config.unlink()
    (folder / "real").write_text(text)
    config.symlink_to("real")
    assert open_checkpoint(folder).files["tokenizer_config.json"] == text


def test_links_within_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--me--bert"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    snapshot = repository / "snapshots" / ("0" * 40)
    FAMILIES["BERT"].write(snapshot)
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(repository / "blobs" / str(number))
        path.symlink_to(f"../../blobs/{number}")
    assert "tokenizer.json" in open_checkpoint(snapshot).files
    assert "tokenizer.json" in open_checkpoint(snapshot / "model.safetensors").files
