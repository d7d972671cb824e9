"""--push-to-hub: what lands on a (small, local) hub, that it loads from there, and what is refused before any work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_hub import TOKEN, FakeHub, Repo, fake_hub
from tiny_families import FAMILIES
from tiny_members import KEPTS, RAGGED, logits, member

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import OutputError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(tmp_path, monkeypatch) as found:
        yield found


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("BERT", "hf"),
        ("timm ViT", "timm"),
        pytest.param("OpenCLIP", "open_clip", marks=pytest.mark.slow),
    ],
)
def test_what_is_pushed_is_the_directory_and_loads_from_the_hub(
    hub: FakeHub, tmp_path: Path, kind: str, spec: str
) -> None:
    family = FAMILIES[kind]
    family.write(tmp_path / "source")
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps(family.both(RAGGED)))
    given = {"mask": mask, "push_to_hub": "me/pruned"}
    made = hs.prune(tmp_path / "source", out=f"{tmp_path / 'out'}/", **given)
    assert made.hub == f"{hub.url}/me/pruned"
    repo = hub.repos["me/pruned"]
    assert repo.commits == ["hydrasurgeon prune"]
    assert repo.files == {p.name: p.read_bytes() for p in made.path.iterdir()}
    card = repo.files["README.md"].decode()
    assert f'hs.load("{spec}:me/pruned")' in card
    assert "DIR" not in card
    inputs = family.inputs()
    options = {"classes": "a,b,c"} if kind == "OpenCLIP" else {}
    here = hs.load(made.path, device="cpu", **options)
    there = hs.load(f"{spec}:me/pruned", device="cpu", **options)
    assert torch.equal(here.predict(inputs), there.predict(inputs))
    # From a file, the same directory; only the weights' header tells more (a lone file keeps its tokenizer).
    hs.prune(
        tmp_path / "source", out=tmp_path / "file.safetensors", mask=mask, push_to_hub="me/file"
    )
    weights = {n for n in repo.files if n.endswith(".safetensors")}
    assert set(hub.repos["me/file"].files) == set(repo.files)
    for name in set(repo.files) - weights - {"README.md"}:
        assert hub.repos["me/file"].files[name] == repo.files[name], name
    again = hs.load(f"{spec}:me/file", device="cpu", **options)
    assert torch.equal(here.predict(inputs), again.predict(inputs))


def test_stock_transformers_loads_a_pushed_hydra(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.dynamic_module_utils as dynamic
    from transformers import AutoModelForSequenceClassification

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    members = [
        member(tmp_path / "source", family, rows, tmp_path / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    fused = hs.fuse(members, out=tmp_path / "h.safetensors", push_to_hub="me/hydra", private=True)
    assert hub.repos["me/hydra"].private
    assert fused.hub is not None
    card = hub.repos["me/hydra"].files["README.md"].decode()
    assert 'from_pretrained("me/hydra", trust_remote_code=True)' in card
    monkeypatch.chdir(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(
        "me/hydra", trust_remote_code=True, cache_dir=tmp_path / "hub-cache"
    ).eval()
    inputs = family.inputs()
    with torch.inference_mode():
        each = model.member_logits(**inputs)
    torch.testing.assert_close(each, logits(fused.path, inputs), rtol=0, atol=1e-5)


def test_a_failed_check_pushes_nothing(
    hub: FakeHub, tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path
) -> None:
    members = [tiny(f"v{s}.safetensors", seed=s) for s in (1, 2)]
    with pytest.raises(Exception, match="allowed is 0"):
        hs.fuse(
            members, out=tmp_path / "h.safetensors", check=images(), tolerance=0, push_to_hub="me/h"
        )
    assert "me/h" not in hub.repos


LINE = "prune --method random --keep 2 vit -o out --push-to-hub {}"


@pytest.mark.parametrize(
    ("token", "line", "says"),
    [
        (None, LINE.format("me/x"), "there is no token"),
        ("hf_wrong", LINE.format("me/x"), "the hub does not know the token"),
        (TOKEN, LINE.format("me/--x"), "not a repository name"),
        (TOKEN, LINE.format("me/public") + " --private", "is public already"),
    ],
)
def test_it_is_refused_before_any_work(
    hub: FakeHub,
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    token: str | None,
    line: str,
    says: str,
) -> None:
    tiny()
    hub.repos["me/public"] = Repo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    assert run(line.split()) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert not (tmp_path / "out.safetensors").exists()
    assert not any(asked.startswith("POST") for asked in hub.asked)


def test_a_namespace_of_others_keeps_the_local_result(
    hub: FakeHub, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "m.safetensors"
    with pytest.raises(OutputError, match=r"may not write there.*under others") as refused:
        hs.prune(tiny(), method="random", keep=2, out=out, push_to_hub="others/x")
    assert "m.safetensors is written and stays" in refused.value.message
    assert refused.value.exit_code == 2
    # What the hint says works once the token is right.
    line = str(refused.value.hint).partition("`")[2].partition("`")[0]
    line = line.replace("DIR/", f"{tmp_path / 'dir'}/").replace("others/x", "me/x")
    assert run(line.split()[1:]) == 0
    assert "heads.json" in hub.repos["me/x"].files
    assert (
        hs.load(tmp_path / "dir", device="cpu").manifest.kept
        == hs.load(out, device="cpu").manifest.kept
    )


def test_an_upload_that_breaks_off_keeps_the_local_result(
    hub: FakeHub, tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.broken = "/commit/"
    source = tiny()
    line = f"prune --method random --keep 2 {source} -o {tmp_path / 'd'}/ --push-to-hub me/x"
    assert run(line.split()) == 2
    said = capsys.readouterr().err
    assert "me/x: was not uploaded" in said
    assert f"hf upload me/x {tmp_path / 'd'}" in said
    assert 'hs.load("DIR")' in (tmp_path / "d" / "README.md").read_text()
    hub.broken = None
    assert run([*line.split(), "--force"]) == 0
    assert f"uploaded to {hub.url}/me/x" in capsys.readouterr().out
