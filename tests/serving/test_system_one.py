"""System One over a real socket: by hand, and by two clients that others wrote."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import tiny_families
from stock_models import ready
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.errors import UsageError
from hydrasurgeon.stages.serve import PACKAGES, serve

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"the extra serve is missing: {name}"
    )
    for name in PACKAGES
]
BERT = FAMILIES["BERT"]
TEXT = "good film"
THREE = dict.fromkeys(["0", "1", "2"])
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": THREE}
NOUL = {"type": "noul", "instructions": "Is it?"}
SCORE = {"type": "score", "criteria": ["2", "0", "1"]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of classes, calibrated; of one logit; of many labels; of a number."""
    home = tmp_path_factory.mktemp("models")
    kinds = {
        "many": {
            "problem_type": "multi_label_classification",
            "id2label": {"0": "red", "1": "round", "2": "small"},
        },
        "one": {},
        "number": {"problem_type": "regression"},
    }
    made = {"team": ready(BERT, home, neurons=None)[0]}
    before = tiny_families.CLASSES
    for name, config in kinds.items():
        tiny_families.CLASSES = 3 if name == "many" else 1
        BERT.write(home / name)
        place = home / name / "config.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | config))
        made[name] = home / name
    tiny_families.CLASSES = before
    return made


@pytest.fixture(scope="module")
def address(models: dict[str, Path]) -> Iterator[str]:
    """A server of all of them."""
    from listening import serving

    with serving(*(f"{name}={path}" for name, path in models.items())) as at:
        yield at


def post(at: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{at}/v1/systemone", data, JSON | named)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def predicted(path: Path, text: str, home: Path) -> dict[str, Any]:
    place = home / "asked.jsonl"
    place.write_text(json.dumps({"text": text}) + "\n")
    (row,) = hs.predict(path, data=str(place), device="cpu", top=3)
    return row


def test_questions_are_answered_by_rows_of_predict(
    address: str, models: dict[str, Path], tmp_path: Path
) -> None:
    rows = {name: predicted(path, TEXT, tmp_path) for name, path in models.items()}
    status, first = post(address, {"state": TEXT, "questions": {"team": CHOICE, "one": NOUL}})
    assert (status, first["model"]) == (200, "team, one")
    assert first["usage"] == {"input_tokens": 8, "output_tokens": 0}
    chances = {str(name): p for name, p in rows["team"]["top"]}
    answer = first["answers"]["team"]
    assert [*answer["probabilities"]] == ["0", "1", "2"]
    assert answer["probabilities"] == pytest.approx(chances, abs=1e-5)
    assert answer["choice"] == str(rows["team"]["label"])
    entropy = -sum(p * math.log(p) for p in chances.values())
    assert answer["confidence"] == pytest.approx(1 - entropy / math.log(3), abs=1e-5)
    assert answer["set"] == [str(name) for name in rows["team"]["set"]]
    assert answer["ood_score"] == pytest.approx(rows["team"]["ood_score"], abs=1e-4)
    own = rows["team"]["answer"]
    assert answer["answer"] == (own if own in ("abstain", "unfamiliar") else "answered")
    # Without a decision state nothing is decided.
    one = first["answers"]["one"]
    assert one == {"type": "noul", "noul": pytest.approx(rows["one"]["probability"], abs=1e-5)}
    label = post(address, {"state": TEXT, "model": "many", "questions": {"red": NOUL}})[1]
    red = dict(rows["many"]["top"])["red"]
    assert label["answers"]["red"]["noul"] == pytest.approx(red, abs=1e-5)
    levels = post(address, {"state": TEXT, "model": "team", "questions": {"stars": SCORE}})[1]
    score = levels["answers"]["stars"]
    assert score["legend"] == {"0": "2", "1": "0", "2": "1"}
    assert score["score"] == pytest.approx(chances["0"] + 2 * chances["1"], abs=1e-5)


def test_some_of_the_classes_sum_to_one(
    address: str, models: dict[str, Path], tmp_path: Path
) -> None:
    row = predicted(models["team"], TEXT, tmp_path)
    chances = {str(name): p for name, p in row["top"]}
    others = [name for name in chances if name != str(row["label"])]
    question = {"type": "choice", "criteria": dict.fromkeys(others)}
    answer = post(address, {"state": TEXT, "questions": {"team": question}})[1]["answers"]["team"]
    total = sum(chances[name] for name in others)
    right = {name: chances[name] / total for name in others}
    assert answer["probabilities"] == pytest.approx(right, abs=1e-5)
    # Its own answer was not among them: of another nothing was promised.
    assert answer["answer"] in ("abstain", "unfamiliar")
    assert set(answer["set"]) <= set(others)


def test_what_a_state_is_as_a_text(address: str) -> None:
    def chances(state: Any) -> Any:
        reply = post(address, {"state": state, "questions": {"team": CHOICE}})[1]
        return reply["answers"]["team"]["probabilities"]

    assert chances({"text": TEXT, "user": 7}) == chances(TEXT)
    assert chances({"b": "good", "a": ["film"]}) == chances('{"b":"good","a":["film"]}')
    assert chances(["é", 1.5]) == chances('["é",1.5]')
    pair = {"text": "good", "text_pair": "bad"}
    refused = post(address, {"state": pair, "questions": {"team": CHOICE}})
    assert refused == (422, {"detail": "state: the model was tuned on texts"})
    both, one = (post(address, {"state": s, "questions": {"one": NOUL}}) for s in (pair, "good"))
    assert both[1]["answers"] != one[1]["answers"]


QUESTIONS = {"team": CHOICE}
WRONG: list[tuple[Any, int, str]] = [
    (b"{", 400, "is not JSON"),
    (b'{"state": [NaN], "questions": {"team": {"type": "noul"}}}', 400, "is not JSON"),
    ([], 422, "the body is not"),
    ({"state": "a"}, 422, "the body is not"),
    ({"questions": QUESTIONS}, 422, "the body is not"),
    ({"state": None, "questions": QUESTIONS}, 422, "state: is neither"),
    ({"state": 3, "questions": QUESTIONS}, 422, "state: is neither"),
    ({"state": " ", "questions": QUESTIONS}, 422, "state: the text is missing"),
    ({"state": {"text": "a", "text_pair": 1}, "questions": QUESTIONS}, 422, "its text_pair"),
    ({"state": "a" * 20_001, "questions": QUESTIONS}, 413, "20,000 characters"),
    ({"state": "a", "questions": {}}, 422, "questions: is not an object"),
    ({"state": "a", "questions": [CHOICE]}, 422, "questions: is not an object"),
    ({"state": "a", "questions": dict.fromkeys(map(str, range(257)), NOUL)}, 413, "at most 256"),
    ({"state": "a", "questions": QUESTIONS, "model": "jev"}, 404, "no model 'jev'; here is 'team'"),
    ({"state": "a", "questions": QUESTIONS, "model": 1}, 422, "model: is not a name"),
    ({"state": "a", "questions": {"x": CHOICE}}, 422, "'x': which of the models"),
    ({"state": "a", "questions": QUESTIONS, "assets": {"p": {}}}, 422, "assets: pictures"),
]
ASKED: list[tuple[str, Any, str]] = [
    ("team", "what?", "its type is none of"),
    ("team", {"type": "essay"}, "its type is none of"),
    ("team", {"type": "box"}, "box: pictures are not read"),
    ("team", {**CHOICE, "instructions": 3}, "its instructions are neither"),
    ("team", {"type": "choice"}, "not an object of option"),
    ("team", {"type": "choice", "criteria": ["0", "1"]}, "not an object of option"),
    ("team", {"type": "choice", "criteria": {"0": 1, "1": None}}, "not an object of option"),
    ("team", {"type": "choice", "criteria": {"0": None}}, "1 options; from 2 to 255"),
    (
        "team",
        {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))},
        "256 options; from 2 to 255",
    ),
    (
        "team",
        {"type": "choice", "criteria": {"0": None, "calm": None, "cross": None}},
        "team was not trained on 'calm', 'cross'; '0', '1', '2' are its classes",
    ),
    ("team", {"type": "score", "criteria": "0"}, "no list of levels, each a text"),
    ("team", {"type": "score", "criteria": [{}, "0"]}, "no list of levels, each a text"),
    ("team", {"type": "score", "criteria": [*map(str, range(11))]}, "11 levels; from 2 to 10"),
    ("team", {"type": "score", "criteria": ["0", "0"]}, "a level occurs twice"),
    ("team", {"type": "score", "criteria": ["low", "1"]}, "was not trained on 'low'"),
    ("team", NOUL, "team cannot answer a noul; ask choice or score"),
    ("one", CHOICE, "one cannot answer a choice; ask noul"),
    ("one", {"type": "noul", "criteria": {"yes": ""}}, "neither a text nor true and false"),
    ("many", NOUL, "many was not trained on 'many'; 'red', 'round', 'small' are its labels"),
    ("number", SCORE, "no levels of them are recorded"),
    ("number", {**SCORE, "criteria": [0, 1, 2]}, 'no list of levels, each a text: ["1", "2"]'),
]


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [*WRONG, *(({"state": "a", "questions": {id: q}}, 422, says) for id, q, says in ASKED)],
)
def test_what_it_refuses_with_one_message(sent: Any, status: int, says: str, address: str) -> None:
    got, reply = post(address, sent)
    assert (got, [*reply]) == (status, ["detail"])
    assert says in reply["detail"]


def test_a_number_on_levels(tmp_path: Path) -> None:
    """Tuned on 0, 1 and 2: a normal distribution around the value, by the interval's width."""
    from listening import serving

    BERT.write(tmp_path / "bert")
    data, to_number = BERT.data(tmp_path, 200), {"task": "regression"}
    rated = hs.finetune(
        tmp_path / "bert", data=data, recipe="probe", set=to_number, out=tmp_path / "n.safetensors"
    )
    assert rated.manifest.model.levels == (0, 1, 2)
    asked = {"state": TEXT, "questions": {"q": {"type": "score", "criteria": ["0", "1", "2"]}}}
    with serving(f"q={rated.path}") as at:
        assert "once it is calibrated" in post(at, asked)[1]["detail"]
    (tmp_path / "val").mkdir()
    known = {*Path(data).read_text().splitlines()}
    val = Path(BERT.data(tmp_path / "val", 300, seed=1))
    new = [line for line in val.read_text().splitlines() if line not in known]
    val.write_text("\n".join(new))
    ready = hs.calibrate(rated.path, data=str(val), out=tmp_path / "ready.safetensors")
    (row,) = hs.predict(ready.path, text=[TEXT])
    q = ready.manifest.decision.conformal.threshold
    around = NormalDist(row["value"], (row["high"] - row["low"]) / 2 / q)
    first, last = around.cdf(0.5), 1 - around.cdf(1.5)
    with serving(f"q={ready.path}") as at:
        answer = post(at, asked)[1]["answers"]["q"]
        asked["questions"]["q"]["criteria"] = ["0", "5"]
        says = "q was not trained on '5'; '0', '1', '2' are its levels; for named ones train"
        assert says in post(at, asked)[1]["detail"]
    assert [*answer["probabilities"].values()] == pytest.approx(
        [first, 1 - first - last, last], abs=1e-4
    )
    assert answer["score"] == pytest.approx(1 - first + last, abs=1e-4)
    assert answer["legend"] == {"0": "0", "1": "1", "2": "2"}
    assert answer["answer"] in ("answered", "unfamiliar")


@pytest.mark.parametrize(
    ("asked", "held", "own", "verdict", "left"),
    [
        ("ab", "b", "b", "answered", "b"),
        ("ac", "b", "b", "abstain", ""),
        ("ac", "bc", "abstain", "abstain", "c"),
        ("ab", "", "unfamiliar", "unfamiliar", ""),
    ],
)
def test_a_set_keeps_the_options_that_were_asked(
    asked: str, held: str, own: str, verdict: str, left: str
) -> None:
    """Where none is left nothing is answered, whatever the choice."""
    from hydrasurgeon.serving.protocols.system_one import asked_of
    from hydrasurgeon.serving.service import ServedModel

    model = ServedModel("m", "text", {"top": "json"}, [*"abc"])
    question = {"type": "choice", "criteria": dict.fromkeys(asked)}
    body = json.dumps({"state": "a", "questions": {"q": question}}).encode()
    row = {"label": "b", "top": [("b", 0.9), ("c", 0.07), ("a", 0.03)], "set": [*held]}
    row |= {"answer": own, "unfamiliar": own == "unfamiliar", "ood_score": 0.0}
    answer = asked_of({"m": model}, body, 8).reply([row])["answers"]["q"]
    assert (answer["answer"], answer["set"]) == (verdict, [*left])


def test_probabilities_that_are_no_numbers_are_the_servers_fault() -> None:
    from hydrasurgeon.serving.protocols.system_one import asked_of
    from hydrasurgeon.serving.service import ServedModel

    model = ServedModel("m", "text", {"logit": "number"})
    body = json.dumps({"state": "a", "questions": {"q": NOUL}}).encode()
    with pytest.raises(ValueError, match="its probabilities are not numbers"):
        asked_of({"m": model}, body, 8).reply([{"probability": math.nan}])


def test_compressed_bodies(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from backports import zstd

    body = json.dumps({"state": TEXT, "questions": QUESTIONS}).encode()
    right = post(address, body)
    huge = b" " * (2 << 20)
    for name, packed in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        assert post(address, packed(body), Content_Encoding=name) == right
        status, reply = post(address, packed(huge), Content_Encoding=name)
        assert (status, reply["detail"]) == (413, "the body has more than 1,048,576 bytes")
        for broken in (body, packed(body)[:-4], b""):
            assert post(address, broken, Content_Encoding=name)[0] == 400
    wide = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    packer = zstd.ZstdCompressor(options=wide)
    far = packer.compress(body) + packer.flush()
    assert post(address, far, Content_Encoding="zstd")[0] == 400
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    for name in ("zstd", "br", "gzip, gzip"):
        status, reply = post(address, body, Content_Encoding=name)
        assert status == 415
        assert repr(name) in reply["detail"]
    assert post(address, body, Content_Type="multipart/form-data; boundary=B")[0] == 415


def test_typesafes_client(address: str) -> None:
    from typesafe_sdk import (
        Choice,
        Noul,
        RetryPolicy,
        Score,
        TypeSafeClient,
        TypeSafeNotFoundError,
        TypeSafeUnprocessableEntityError,
    )

    with TypeSafeClient(
        api_key="k", base_url=address, model="team", retry=RetryPolicy(max_retries=0)
    ) as client:
        listed = {each.name: each for each in client.models.list().models}
        assert [*listed] == ["team", "many", "one", "number"]
        assert listed["many"].description == "noul of each label: red, round, small"
        # Above 1,024 bytes it compresses.
        state = {"text": "film " * 300}
        reply = client.system_one(
            state,
            {
                "team": Choice(criteria=THREE),
                "one": Noul(instructions="Is it?"),
                "stars": Score(criteria=["0", "1", "2"]),
            },
        )
        assert reply.choices["team"].choice == max(
            reply.choices["team"].probabilities, key=reply.choices["team"].probabilities.__getitem__
        )
        assert 0 < reply.nouls["one"].noul < 1
        assert 0 <= reply.scores["stars"].score <= 2
        label = client.system_one(TEXT, {"red": Noul(instructions="Red?")}, model="many")
        assert 0 < label.nouls["red"].noul < 1
        with pytest.raises(TypeSafeNotFoundError, match="no model 'jev-latest'; here is 'team'"):
            client.system_one(TEXT, {"team": Choice(criteria=THREE)}, model="jev-latest")
        with pytest.raises(TypeSafeUnprocessableEntityError, match="not trained on 'calm'"):
            client.system_one(TEXT, {"team": Choice(criteria={"0": None, "calm": None})})

        def ask(at: int) -> dict[str, float]:
            found = client.system_one(f"film {at % 4}", {"team": Choice(criteria=THREE)})
            return found.choices["team"].probabilities

        alone = [ask(at) for at in range(4)]
        with ThreadPoolExecutor(32) as pool:
            for at, found in enumerate(pool.map(ask, range(32))):
                assert found == pytest.approx(alone[at % 4], abs=1e-4)


def test_systemone_clients_client_and_its_token(models: dict[str, Path]) -> None:
    from listening import serving
    from systemone import Choice, Client, Noul, Score, SystemOneError

    questions = {"team": Choice("Which?", THREE), "stars": Score("How good?", ["0", "1", "2"])}
    with serving(models["team"], token="secret") as at:
        with Client(at, api_key="wrong") as client, pytest.raises(SystemOneError) as refused:
            client.system_one(TEXT, questions)
        assert (refused.value.status, refused.value.detail) == (401, "the bearer token is wrong")
        with Client(at, api_key="secret") as client:
            reply = client.system_one({"text": TEXT}, questions)
            assert sum(reply.choices["team"].probabilities.values()) == pytest.approx(1)
            assert reply.scores["stars"].legend == {"0": "0", "1": "1", "2": "2"}
            assert (reply.model, reply.usage.input_tokens) == ("ready", 4)
            with pytest.raises(SystemOneError, match="cannot answer a noul"):
                client.system_one(TEXT, {"spam": Noul("Is it?")})
        body = {"state": TEXT, "questions": {"any": CHOICE}}
        assert post(at, body, X_API_Key="secret")[0] == 200
        assert post(at, body, X_API_Key="other")[0] == 401
        assert post(at, body, Authorization="Basic secret")[0] == 401


def test_what_several_models_cannot(models: dict[str, Path], tmp_path: Path) -> None:
    vit = tmp_path / "vit"
    FAMILIES["timm ViT"].write(vit)
    team, one = str(models["team"]), str(models["one"])
    for checkpoints, options, says in (
        ((team, team), {}, "ready: occurs twice"),
        ((team, one), {"answers": tmp_path / "a.jsonl"}, "--answers is for one model only"),
        ((team, str(vit)), {}, "vit: reads images"),
    ):
        with pytest.raises(UsageError, match=says):
            serve(checkpoints=checkpoints, port=0, device="cpu", **options)
