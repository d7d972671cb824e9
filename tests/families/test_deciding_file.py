"""A directory's own model decides as ours does, in transformers alone: by every score, of members and hydras."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtime_states import drawn
from tiny_families import CLASSIFIERS, FAMILIES, Family, thoroughly
from tiny_members import KEPTS, RAGGED, member, tune

import hydrasurgeon as hs
from hydrasurgeon.decision.state import decide
from hydrasurgeon.families.hf_encoder.family import DECIDING
from hydrasurgeon.families.hf_encoder.standalone import deciding
from hydrasurgeon.files.decided import SCORES, Joint

HF = thoroughly(*CLASSIFIERS)
THREADS = 8

pytestmark = pytest.mark.usefixtures("own_module_cache")


@pytest.fixture(scope="module")
def written() -> Iterator[Any]:
    """The file that a directory gets, as a module of this package, for what it imports beside it."""
    text = deciding()
    assert not re.search(r"^\s*(from|import) hydrasurgeon", text, re.MULTILINE)
    name = "hydrasurgeon.families.hf_encoder.written"
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    exec(compile(text, name, "exec"), vars(module))
    yield module
    del sys.modules[name]


@pytest.mark.parametrize("joint", [None, Joint(aleatoric=0.7, epistemic=2.5)])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("score", SCORES)
def test_every_score_is_that_of_the_package(
    written: Any, score: str, members: int, joint: Joint | None
) -> None:
    state, generator = drawn(score, members, joint=joint), torch.Generator().manual_seed(members)
    logits, features = (torch.randn(6, members, count, generator=generator) for count in (5, 8))
    config = types.SimpleNamespace(hydrasurgeon={"decision": state.record.model_dump(mode="json")})
    decides = written.Decides(config, members, state.tensors)
    answer, right = decides(logits, features), decide(state, logits, features)
    assert torch.equal(answer["ood_score"], right.ood_score.float())
    assert torch.equal(answer["unfamiliar"], right.unfamiliar)
    assert torch.equal(answer["probabilities"], right.probabilities.float())
    torch.testing.assert_close(
        answer["logits"].softmax(-1), right.probabilities.float(), rtol=1e-5, atol=1e-7
    )
    assert torch.equal(answer["uncertainty"], right.total.float())


def made(folder: Path, family: Family, kind: str, score: str, *, rows: int = 90) -> Path:
    family.write(folder / "source")
    path = folder / "source"
    if kind == "member":
        path = member(path, family, RAGGED, folder / "m.safetensors")
    elif kind in ("hydra", "mean trunk"):
        members = [
            member(path, family, each, folder / f"m{i}.safetensors") for i, each in enumerate(KEPTS)
        ]
        trunk = None
        if kind == "mean trunk":
            trunk = 1
            members = [
                tune(each, folder / f"t{i}.safetensors", i) for i, each in enumerate(members)
            ]
        path = hs.fuse(members, mean_trunk=trunk, out=folder / "h.safetensors").path
    data = family.data(folder, rows=rows)
    return hs.calibrate(path, data=data, ood_score=score, out=f"{folder / 'ready'}/").path


def stock(folder: Path, family: Family) -> Any:
    import transformers

    kind = "Sequence" if family.is_text else "Image"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    return auto.from_pretrained(folder, trust_remote_code=True)


def check(folder: Path, family: Family) -> None:
    model, inputs = stock(folder, family), family.inputs()
    with torch.inference_mode():
        answer = model(**inputs) if family.is_text else model(inputs)
    ours = hs.load(folder, device="cpu")
    right = ours.decide(inputs)
    torch.testing.assert_close(answer.probabilities, right.probabilities.float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        answer.logits.softmax(-1), right.probabilities.float(), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(answer.uncertainty, right.total.float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(answer.ood_score, right.ood_score.float(), rtol=1e-4, atol=1e-4)
    assert ours.state is not None
    clear = (right.ood_score - ours.state.record.ood.threshold).abs() > 1e-3
    assert torch.equal(answer.unfamiliar[clear], right.unfamiliar[clear])


@pytest.mark.parametrize("kind", ["backbone", "member", "hydra", "mean trunk"])
@pytest.mark.parametrize("family", HF)
def test_the_model_of_a_directory_decides(family: Family, kind: str, tmp_path: Path) -> None:
    folder = made(tmp_path, family, kind, "vim")
    check(folder, family)
    if kind == "backbone":
        # Stock transformers runs it too, and knows no state.
        from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

        auto = (
            AutoModelForSequenceClassification
            if family.is_text
            else AutoModelForImageClassification
        )
        plain = auto.from_pretrained(folder)
        assert "hydrasurgeon" not in type(plain).__module__


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("kind", ["member", "hydra"])
@pytest.mark.parametrize("family", [FAMILIES[name] for name in ("BERT", "ViT", "Llama")])
def test_threads_get_the_answers_of_one_thread(family: Family, kind: str, tmp_path: Path) -> None:
    model = stock(made(tmp_path, family, kind, "mds"), family)
    rows = [slice(number % 5, number % 5 + 1 + number % 3) for number in range(THREADS)]
    whole = family.inputs(7)
    batches = [
        {key: value[some] for key, value in whole.items()} if family.is_text else whole[some]
        for some in rows
    ]

    def scores(number: int) -> torch.Tensor:
        inputs = batches[number]
        with torch.inference_mode():
            answer = model(**inputs) if family.is_text else model(inputs)
        return answer.ood_score

    alone = [scores(number) for number in range(THREADS)]

    def ask(number: int) -> None:
        for _ in range(20):
            torch.testing.assert_close(scores(number), alone[number], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(THREADS) as threads:
        assert [*threads.map(ask, range(THREADS))] == [None] * THREADS


def test_in_training_it_is_the_plain_model(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    folder = made(tmp_path, family, "member", "msp")
    model = stock(folder, family)
    labels = torch.tensor([0, 1, 2, 0, 1])
    answer = model(**family.inputs(), labels=labels, output_hidden_states=True)
    assert len(answer.hidden_states) == 4
    assert answer.loss is not None
    as_tuple = model(**family.inputs(), return_dict=False)
    assert torch.equal(as_tuple[0], answer.logits)
    model.train()
    trained = model(**family.inputs(), labels=labels)
    assert "unfamiliar" not in trained
    trained.loss.backward()
    assert model.classifier.weight.grad is not None
    # What was trained is saved as the plain model: the state was fitted to other weights.
    with pytest.warns(UserWarning, match="the decision state is not saved"):
        model.save_pretrained(tmp_path / "again")
    assert model.config.hydrasurgeon["decision"]
    again = stock(tmp_path / "again", family).eval()
    assert "decision" not in again.config.hydrasurgeon
    model.decides = None
    plain = model.eval()(**family.inputs())
    answered = again(**family.inputs())
    assert "unfamiliar" not in answered
    torch.testing.assert_close(answered.logits, plain.logits, rtol=0, atol=0)


def test_a_pipeline_gives_calibrated_probabilities(tmp_path: Path) -> None:
    from transformers import pipeline

    family = FAMILIES["BERT"]
    folder = made(tmp_path, family, "hydra", "rmds")
    texts = ["good film", "a very very bad film"]
    classify = pipeline(
        "text-classification", model=str(folder), trust_remote_code=True, top_k=None
    )
    by_label = [sorted(rows, key=lambda row: row["label"]) for rows in classify(texts)]
    found = torch.tensor([[row["score"] for row in rows] for rows in by_label])
    model = hs.load(folder, device="cpu")
    right = model.decide(model.transform.collate(texts))
    torch.testing.assert_close(found, right.probabilities.float(), rtol=0, atol=1e-5)
    plain = model.predict(model.transform.collate(texts))
    assert (found - plain).abs().max() > 1e-3  # calibration changes something here


ALONE = """
import sys, json; sys.modules["hydrasurgeon"] = None
import numpy as np
from PIL import Image
from transformers import pipeline
classify = pipeline("{task}", model={folder!r}, trust_remote_code=True, top_k=None)
pixels = np.random.default_rng(5).integers(0, 255, (28, 28, 3), dtype=np.uint8)
inputs = ["good film"] if "{task}".startswith("text") else [Image.fromarray(pixels)]
rows = [sorted(rows, key=lambda row: row["label"]) for rows in classify(inputs)]
prepared = classify.preprocess(inputs[0])
answer = classify.model(**{{key: value for key, value in prepared.items()}})
print(json.dumps([[row["score"] for row in rows[0]], answer.ood_score.item(), answer.unfamiliar.item()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("ModernBERT", "member"), ("ViT", "hydra")])
def test_a_pipeline_in_a_process_without_us(name: str, kind: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = made(tmp_path, family, kind, "rmds")
    task = f"{'text' if family.is_text else 'image'}-classification"
    code = ALONE.format(task=task, folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "HF_MODULES_CACHE": str(tmp_path / "modules"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
    )
    probs, score, flag = json.loads(done.stdout.splitlines()[-1])
    model = hs.load(folder, device="cpu")
    pixels = np.random.default_rng(5).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    if family.is_text:
        inputs = model.transform.collate(["good film"])
    else:
        from PIL import Image

        inputs = model.transform(Image.fromarray(pixels))[None]
    right = model.decide(inputs)
    np.testing.assert_allclose(probs, right.probabilities[0].numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(score, right.ood_score[0].numpy(), rtol=1e-3, atol=1e-3)
    assert flag == right.unfamiliar.item()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(joint={"aleatoric": 1}),
        lambda d: d.update(ood=None),
        lambda d: d["ood"].update(threshold=None),
        lambda d: d["ood"].update(score="../x"),
        lambda d: d["ood"].update(score="knn"),
    ],
)
def test_records_that_say_nonsense(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    family = FAMILIES["BERT"]
    folder = made(tmp_path, family, "member", "mds")
    config = json.loads((folder / "config.json").read_text())
    change(config["hydrasurgeon"]["decision"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is no decision state"):
        stock(folder, family)


def test_the_file_in_a_directory_is_made_of_the_package(tmp_path: Path) -> None:
    """What SECURITY.md tells readers to compare; without a state there is none."""
    family = FAMILIES["BERT"]
    folder = made(tmp_path, family, "member", "msp")
    name = f"{DECIDING}.py"
    assert (folder / name).read_text(encoding="utf-8") == deciding()
    plain = member(tmp_path / "source", family, RAGGED, f"{tmp_path / 'plain'}/")
    assert not (plain / name).exists()
