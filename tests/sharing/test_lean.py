"""Exported graphs have few and wide products, and answer as torch does."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from tiny_families import DIM, FAMILIES
from tiny_members import tune

import hydrasurgeon as hs
from hydrasurgeon.engines.onnx import to_onnx
from hydrasurgeon.engines.program import sample

MEMBERS, TRUNK = 3, 1  # of three layers


def test_members_leave_the_trunk_by_one_product(tmp_path: Path) -> None:
    """Queries, keys and values are one product in each layer, and of all members in the first behind the trunk."""
    source = tmp_path / "source"
    FAMILIES["BERT"].write(source)
    tuned = [tune(source, tmp_path / f"t{i}.safetensors", seed=i) for i in range(MEMBERS)]
    hydra = hs.fuse(tuned, mean_trunk=TRUNK, out=tmp_path / "hydra.safetensors")
    model = hs.load(hydra.path, device="cpu")
    made = to_onnx(model, plain=True)
    inputs = sample(model, batch=3, length=6)
    with torch.inference_mode():
        expected = model(dict(inputs))
    torch.testing.assert_close(made.run(inputs)[0], expected, rtol=0, atol=1e-5)
    graph = onnx.load_from_string(made.content).graph
    weights = {array.name: [*array.dims] for array in graph.initializer}
    products = [n.input[1] for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]
    rest = 3  # W_O, W_1 and W_2
    # The last layer asks for one token alone: its queries have an input of their own.
    first, last = 1 + MEMBERS * rest, MEMBERS * (2 + rest)
    assert len(products) == TRUNK * (1 + rest) + first + last
    assert [DIM, MEMBERS * 3 * DIM] in [weights[name] for name in products]
