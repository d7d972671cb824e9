"""Other servers' protocols over a real socket: by hand on the wire, and by clients that others wrote."""

from __future__ import annotations

import base64
import importlib.util
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import serving
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
BERT, VIT = FAMILIES["BERT"], FAMILIES["timm ViT"]
TEXTS = ["good film", "bad plot good", "the dull film"]
HEADER = "Inference-Header-Content-Length"


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """What is replied to a body: bytes as they are, all else as JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, named)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status, content, said = reply.status, reply.read(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        status, content, said = error.code, error.read(), dict(error.headers)
    plain = {name.lower(): value for name, value in said.items()}
    as_json = plain["content-type"] == "application/json"
    return status, json.loads(content) if as_json else content, plain


def own(path: Path, texts: list[Any]) -> torch.Tensor:
    """The logits of the model's own library."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    rows = []
    for text in texts:
        parts = (text,) if isinstance(text, str) else text
        with torch.inference_mode():
            rows.append(model(**tokenizer(*parts, return_tensors="pt")).logits[0])
    return torch.stack(rows)


@pytest.fixture(scope="module")
def texts_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("texts") / "films"
    BERT.write(place)
    return place


def tensor(values: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": "text", "shape": [len(values)], "datatype": "BYTES", "data": values, **more}


def test_open_inference_by_hand(texts_model: Path) -> None:
    right = own(texts_model, TEXTS).softmax(dim=-1)
    with serving(texts_model) as at:
        assert ask(f"{at}/v2")[1]["extensions"] == ["binary_tensor_data"]
        for path in ("/health/live", "/health/ready", "/models/films/ready"):
            assert ask(f"{at}/v2{path}")[0] == 200
        described = ask(f"{at}/v2/models/films")[1]
        unknown = ask(f"{at}/v2/models/other/infer", {"inputs": []})
        sent = {"id": "r1", "inputs": [tensor(TEXTS)], "outputs": [{"name": "probabilities"}]}
        status, reply, _ = ask(f"{at}/v2/models/films/infer", sent)
        nested = tensor([[text] for text in TEXTS], shape=[3, 1])
        every = ask(f"{at}/v2/models/films/infer", {"inputs": [nested]})[1]["outputs"]
        ours = ask(f"{at}/v1/predict", {"inputs": TEXTS}, content_type="application/json")[1]
    assert [each["name"] for each in described["inputs"]] == ["text", "text_pair"]
    assert unknown[:2] == (404, {"error": "no model 'other'; here is 'films'"})
    assert (status, reply["model_name"], reply["id"]) == (200, "films", "r1")
    (output,) = reply["outputs"]
    assert (output["shape"], output["datatype"]) == ([3, right.shape[1]], "FP32")
    assert output["data"] == pytest.approx(right.flatten().tolist(), abs=1e-5)
    assert [each["name"] for each in every] == [each["name"] for each in described["outputs"]]
    values = {each["name"]: each["data"] for each in every}
    best = right.argmax(dim=-1).tolist()
    labels = output["parameters"]["labels"]
    assert values["label"] == [str(labels[k]) for k in best]
    assert values["probability"] == pytest.approx(right.amax(dim=-1).tolist(), abs=1e-5)
    # Nothing is decided about without a decision state.
    assert not {"unfamiliar", "ood_score"} & set(values)
    assert [row["label"] for row in ours["answers"]] == [labels[k] for k in best]


def test_binary_tensors_by_hand(texts_model: Path) -> None:
    """Strings behind their lengths, little-endian; outputs one behind another."""
    right = own(texts_model, TEXTS).softmax(dim=-1)
    packed = b"".join(struct.pack("<I", len(each)) + each.encode() for each in TEXTS)
    sent = tensor([], shape=[3], parameters={"binary_data_size": len(packed)})
    del sent["data"]
    head = json.dumps(
        {
            "inputs": [sent],
            "outputs": [
                {"name": "probability", "parameters": {"binary_data": True}},
                {"name": "label"},
                {"name": "members_run", "parameters": {"binary_data": True}},
            ],
        }
    ).encode()
    with serving(texts_model) as at:
        url = f"{at}/v2/models/films/infer"
        status, content, said = ask(
            url, head + packed, Inference_Header_Content_Length=str(len(head))
        )
        cut = ask(url, head + packed[:-1], Inference_Header_Content_Length=str(len(head)))
        long = [
            ask(url, head + packed, Inference_Header_Content_Length=length)
            for length in ("99999", "9" * 5000, "²", "0" * 5000 + "10")
        ]
        padded = ask(
            url, head + packed, Inference_Header_Content_Length="0" * 5000 + str(len(head))
        )
    assert status == 200
    length = int(said[HEADER.lower()])
    first, second, third = json.loads(content[:length])["outputs"]
    assert len(second["data"]) == 3
    size = first["parameters"]["binary_data_size"]
    numbers = np.frombuffer(content[length:][:size], "<f4")
    assert numbers == pytest.approx(right.amax(dim=-1).numpy(), abs=1e-5)
    assert struct.unpack("<3q", content[length + size :]) == (1, 1, 1)
    assert third["parameters"] == {"binary_data_size": 24}
    assert cut[:2] == (400, {"error": "input text: its binary data are not there"})
    assert [status for status, *_ in long] == [400] * 4
    assert padded[:2] == (200, content)


@pytest.mark.parametrize(
    ("request_body", "says"),
    [
        ({}, 'the body is not {"inputs": [...]}'),
        ({"inputs": []}, "inputs: ; this model reads text and text_pair"),
        ({"inputs": [tensor(["a"], datatype="FP32")]}, "input text: is FP32; BYTES are read"),
        (
            {"inputs": [tensor(["a"], shape=[1, 2])]},
            "input text: its shape is [1, 2]; [n] and [n, 1] are read",
        ),
        ({"inputs": [tensor(["a"], shape=[2])]}, "input text: 1 values, 2 by its shape"),
        (
            {"inputs": [tensor(["a"], name="image")]},
            "inputs: image; this model reads text and text_pair",
        ),
        ({"inputs": [tensor([1])]}, "input text: its data are not a list of strings"),
        ({"inputs": [tensor([" "])]}, "inputs[0]: the text is missing"),
        (
            {"inputs": [tensor(["a"]), tensor(["a", "b"], name="text_pair")]},
            "inputs: their shapes differ",
        ),
        (
            {"inputs": [tensor(["a"], parameters={"binary_data_size": True})]},
            "input text: its binary data are not there",
        ),
        ({"inputs": [tensor(["a"], parameters=3)]}, "input text: its parameters are not an object"),
        ({"inputs": [tensor(["a"]), tensor(["b"])]}, "input text: occurs twice"),
        ({"inputs": [tensor(["a"])], "outputs": {}}, "outputs: is not a list of objects"),
        ({"inputs": [tensor(["a"])], "parameters": []}, "parameters: binary_data_output is"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": []}]}, "outputs: no []"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "logits"}]}, "outputs: no 'logits'"),
        (
            {"inputs": [tensor(["a"])], "parameters": {"binary_data_output": 1}},
            "parameters: binary_data_output is neither true nor false",
        ),
    ],
)
def test_tensors_that_do_not_fit(request_body: Any, says: str, shared_server: str) -> None:
    status, reply, _ = ask(f"{shared_server}/v2/models/films/infer", request_body)
    assert status == 400
    assert reply["error"].startswith(says)


@pytest.fixture(scope="module")
def shared_server(texts_model: Path) -> Iterator[str]:
    with serving(texts_model) as at:
        yield at


def test_pictures_as_tensors_are_those_of_predict(tmp_path: Path) -> None:
    """In base64 or as they are; with what the decision state says."""
    import io

    from PIL import Image

    VIT.write(tmp_path / "source")
    data = VIT.data(tmp_path, rows=60)
    path = hs.calibrate(
        tmp_path / "source", data=data, ood_score="mds", out=tmp_path / "c.safetensors"
    ).path
    rows = list(hs.predict(path, data=data, device="cpu"))[:8]
    files = []
    for pixels in np.load(data)["images"][:8]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        files.append(buffer.getvalue())
    sent = tensor([base64.b64encode(each).decode() for each in files], name="image")
    with serving(path) as at:
        status, reply, _ = ask(f"{at}/v2/models/c/infer", {"inputs": [sent]})
        bad = ask(f"{at}/v2/models/c/infer", {"inputs": [{**sent, "data": ["@"] * 8}]})
        assert ask(f"{at}/predict", {"inputs": "a"})[0] == 404
    assert status == 200
    values = {each["name"]: each["data"] for each in reply["outputs"]}
    for name in ("label", "answer"):
        assert values[name] == [str(row[name]) for row in rows]
    assert values["unfamiliar"] == [row["unfamiliar"] for row in rows]
    assert values["ood_score"] == pytest.approx([row["ood_score"] for row in rows], rel=1e-3)
    assert bad[:2] == (400, {"error": "inputs[0]: is not base64"})


def test_triton_client(texts_model: Path, shared_server: str) -> None:
    httpclient = pytest.importorskip("tritonclient.http")
    right = own(texts_model, TEXTS).softmax(dim=-1).numpy()
    client = httpclient.InferenceServerClient(shared_server.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("films")
    assert client.get_server_metadata()["name"] == "hydrasurgeon"
    metadata = client.get_model_metadata("films")
    labels = [str(each) for each in metadata["outputs"][-1]["parameters"]["labels"]]
    for binary in (True, False):
        sent = httpclient.InferInput("text", [3, 1], "BYTES")
        sent.set_data_from_numpy(np.array([[t.encode()] for t in TEXTS], dtype=object), binary)
        some = [httpclient.InferRequestedOutput(n, binary) for n in ("probabilities", "label")]
        for outputs in (None, some):
            result = client.infer("films", [sent], outputs=outputs, request_id="7")
            assert np.allclose(result.as_numpy("probabilities"), right, atol=1e-5)
            said = [
                each.decode() if binary or outputs is None else each
                for each in result.as_numpy("label")
            ]
            assert said == [labels[k] for k in right.argmax(1)]
            assert result.get_response()["id"] == "7"
    wrong = httpclient.InferInput("text", [1], "INT32")
    wrong.set_data_from_numpy(np.array([1], dtype=np.int32))
    with pytest.raises(Exception, match="is INT32; BYTES are read"):
        client.infer("films", [wrong])
    client.close()


def test_a_variable_without_a_token(texts_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_TOKEN", "")
    for name in ("EMPTY_TOKEN", "NO_SUCH_TOKEN"):
        with pytest.raises(UsageError, match=f"--token-env {name}: this variable is not set"):
            serve(texts_model, port=0, device="cpu", token_env=name)
