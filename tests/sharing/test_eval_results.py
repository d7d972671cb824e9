"""`.eval_results/*.yaml`: what the hub's own reader makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from fake_hub import FakeHub, fake_hub

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.card import EVAL_RESULTS
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.sharing.measured_card import leaderboard_entry, write_entry


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(tmp_path, monkeypatch) as local:
        yield local


@pytest.fixture
def bands(images: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Data that seem to lie on the hub."""
    from hydrasurgeon.data import libraries, sources

    spec = images()

    def read(name: str, rest: str, carried: object) -> object:
        samples = sources.open_data(spec)
        samples.spec = name
        return samples

    monkeypatch.setitem(sources.SCHEMES, "hf", read)
    assert libraries.read_hub is not read
    return "hf:me/bands:test"


@pytest.fixture
def folder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    return hs.prune(tiny(), method="random", keep=2, out=f"{tmp_path / 'member'}/").path


def test_the_hub_reads_it(folder: Path, images: Callable[..., str]) -> None:
    parse = getattr(huggingface_hub, "parse_eval_result_entries", None)
    if parse is None:
        pytest.skip("an older huggingface_hub, which does not read it")
    (result,) = hs.evaluate([folder], data=images()).report.results
    record = DataRecord(spec="hf:uoft-cs/cifar100/fine:test", rows=40, sha256="0" * 64)
    entry = leaderboard_entry(result, record)
    assert entry is not None
    assert write_entry(folder, entry) == folder / EVAL_RESULTS
    (read,) = parse(yaml.safe_load((folder / EVAL_RESULTS).read_text(encoding="utf-8")))
    assert (read.dataset_id, read.task_id) == ("uoft-cs/cifar100", "fine")
    assert read.value == pytest.approx(100 * result.id.accuracy, abs=1e-4)
    assert "40 samples of test" in read.notes
    # The directory is still a checkpoint, and a second writing takes the first one's place.
    before = (folder / EVAL_RESULTS).read_bytes()
    open_checkpoint(folder).digests()
    write_entry(folder, entry)
    assert (folder / EVAL_RESULTS).read_bytes() == before


def test_other_data_make_no_entry(folder: Path, images: Callable[..., str]) -> None:
    (result,) = hs.evaluate([folder], data=images()).report.results
    for spec in (
        "demo:test",
        "data.npz",
        "hf:mnist:test",
        "torchvision:MNIST:test",
        "hf:a/b/c/d:test",
        "hf:a/../b:test",
    ):
        assert leaderboard_entry(result, DataRecord(spec=spec, rows=40, sha256="0" * 64)) is None


def test_eval_card_writes_it_for_data_of_the_hub(folder: Path, bands: str) -> None:
    evaluation = hs.evaluate([folder], data=bands, card=True)
    assert evaluation.hub is None
    assert evaluation.cards == (folder / "README.md", folder / EVAL_RESULTS)
    (written,) = yaml.safe_load((folder / EVAL_RESULTS).read_text(encoding="utf-8"))
    assert written["dataset"] == {"id": "me/bands", "task_id": "default"}
    (folder / EVAL_RESULTS).unlink()
    hs.evaluate([folder], data=bands, card=True, limit=10)
    assert not (folder / EVAL_RESULTS).exists()  # a part of the samples is no benchmark


def test_it_does_not_keep_a_directory_from_being_replaced(folder: Path, bands: str) -> None:
    """The folder is ours with it; with somebody's file beside it, it is not."""
    hs.evaluate([folder], data=bands, card=True)
    again = {"method": "random", "keep": 2, "out": f"{folder}/", "force": True}
    theirs = folder / EVAL_RESULTS.parent / "theirs.yaml"
    theirs.write_text("[]")
    source = folder.parent / "vit.safetensors"
    with pytest.raises(OutputError, match=r"did not write \(\.eval_results\)"):
        hs.prune(source, **again)
    theirs.unlink()
    hs.prune(source, **again)
    assert not (folder / EVAL_RESULTS.parent).exists()


def test_card_and_results_are_pushed_as_one_commit(
    hub: FakeHub,
    folder: Path,
    bands: str,
    images: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = folder.parent / "vit.safetensors"
    hs.prune(source, method="random", keep=2, out=f"{folder}/", force=True, push_to_hub="me/x")
    repo = hub.repos["me/x"]
    pushed = {**repo.files}
    assert run(["eval", str(folder), "--data", bands, "--card", "--push-to-hub", "me/x"]) == 0
    assert f"uploaded to {hub.url}/me/x" in capsys.readouterr().out
    assert repo.commits == ["hydrasurgeon prune", "hydrasurgeon eval"]
    changed = {name for name, content in repo.files.items() if pushed.get(name) != content}
    assert changed == {"README.md", ".eval_results/hydrasurgeon.yaml"}
    for name in changed:
        assert repo.files[name] == (folder / name).read_bytes()
    assert 'hs.load("timm:me/x")' in repo.files["README.md"].decode()
    # A directory that was written without a push tells the hub's readers their address, too.
    hs.prune(source, method="random", keep=2, out=f"{folder}/", force=True)
    evaluation = hs.evaluate([folder], data=images(), card=True, push_to_hub="me/x")
    assert evaluation.hub == f"{hub.url}/me/x"
    assert 'hs.load("timm:me/x")' in repo.files["README.md"].decode()
    assert repo.files["README.md"] == (folder / "README.md").read_bytes()
