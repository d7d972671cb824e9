"""`.eval_results/*.yaml`: what the hub's own reader makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import yaml

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.sharing.eval_results import PLACE, entry, write_eval_results


@pytest.fixture
def folder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    return hs.prune(tiny(), method="random", keep=2, out=f"{tmp_path / 'member'}/").path


def test_the_hub_reads_it(folder: Path, images: Callable[..., str]) -> None:
    parse = getattr(huggingface_hub, "parse_eval_result_entries", None)
    if parse is None:
        pytest.skip("an older huggingface_hub, which does not read it")
    (result,) = hs.evaluate([folder], data=images()).report.results
    record = DataRecord(spec="hf:uoft-cs/cifar100/fine:test", rows=40, sha256="0" * 64)
    assert write_eval_results(folder, result, record) == folder / PLACE
    (read,) = parse(yaml.safe_load((folder / PLACE).read_text(encoding="utf-8")))
    assert (read.dataset_id, read.task_id) == ("uoft-cs/cifar100", "fine")
    assert read.value == pytest.approx(100 * result.id.accuracy, abs=1e-4)
    assert "40 samples of test" in read.notes
    # The directory is still a checkpoint, and a second writing takes the first one's place.
    before = (folder / PLACE).read_bytes()
    open_checkpoint(folder).digests()
    write_eval_results(folder, result, record)
    assert (folder / PLACE).read_bytes() == before


def test_other_data_make_no_entry(folder: Path, images: Callable[..., str]) -> None:
    (result,) = hs.evaluate([folder], data=images()).report.results
    for spec in ("demo:test", "data.npz", "hf:mnist:test", "torchvision:MNIST:test", "hf:a/b/c/d:test", "hf:a/../b:test"):  # fmt: skip
        assert entry(result, DataRecord(spec=spec, rows=40, sha256="0" * 64)) is None


def test_a_card_of_local_data_brings_none(folder: Path, images: Callable[..., str]) -> None:
    evaluation = hs.evaluate([folder], data=images(), card=True)
    assert evaluation.cards == (folder / "README.md",)
    assert not (folder / PLACE).parent.exists()


def test_eval_card_writes_it_for_data_of_the_hub(
    folder: Path, images: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydrasurgeon.data import libraries, sources

    spec = images()

    def read(name: str, rest: str) -> object:
        samples = sources.open_data(spec)
        samples.spec = name
        return samples

    monkeypatch.setitem(sources.SCHEMES, "hf", read)
    assert libraries.read_hub is not read
    evaluation = hs.evaluate([folder], data="hf:me/bands:test", card=True)
    assert evaluation.cards == (folder / "README.md", folder / PLACE)
    (written,) = yaml.safe_load((folder / PLACE).read_text(encoding="utf-8"))
    assert written["dataset"] == {"id": "me/bands", "task_id": "default"}
    (folder / PLACE).unlink()
    hs.evaluate([folder], data="hf:me/bands:test", card=True, limit=10)
    assert not (folder / PLACE).exists()  # a part of the samples is no benchmark
