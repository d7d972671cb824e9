"""A folder with a graph, for clients that do not know us: their config, model card and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.checkpoints.card import CARD, model_card
from hydrasurgeon.checkpoints.checkpoint import Checkpoint, all_kept, rewritten
from hydrasurgeon.checkpoints.folder import GRAPHS
from hydrasurgeon.data.texts import IDS
from hydrasurgeon.engines.onnx.onnx_header import LENGTHS, Told
from hydrasurgeon.engines.onnx.program import Exported, sample
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.atomic import fill
from hydrasurgeon.files.decided import BESIDE, PREFIX
from hydrasurgeon.files.manifest import OF_WORDS, SingleManifest
from hydrasurgeon.files.tensors import Tensors, write_tensors
from hydrasurgeon.measuring.cost import macs, parameters
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.sharing.stock import thresholds

GIVEN = "nothing: the graph's outputs ood_score and unfamiliar say it"
GRAPH_USAGE = """
from optimum.onnxruntime import ORTModelFor{kind}Classification
from transformers import pipeline

model = ORTModelFor{kind}Classification.from_pretrained("DIR")
classify = pipeline("{task}", model=model, {reader}="DIR")
"""
"""Code in a model card that runs a folder with a graph."""


def costs_of(model: Classifier, file: Exported) -> Told:
    """Return the cost record that is stored in the file of a graph."""
    lengths = LENGTHS
    if "pixel_values" in file.inputs:
        lengths = LENGTHS[:1]
    inputs: list[Any] = [sample(model, batch=1, length=length) for length in lengths]
    read = [sample_inputs.get("pixel_values", sample_inputs) for sample_inputs in inputs]
    counts, all_tokens = (
        tuple(macs(model, sample_inputs, all_tokens=every_token) for sample_inputs in read)
        for every_token in (False, True)
    )
    return Told(params=parameters(model), macs=counts, macs_all_tokens=all_tokens)


def with_types(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint as one for pairs of texts.

    A client that calls a tokenizer alone always feeds the ids of token types.
    """
    model = checkpoint.manifest.model
    if "max_length" not in model.preprocess:
        return checkpoint
    pairs = model.model_copy(update={"inputs": "text_pair"})
    return replace(checkpoint, manifest=rewritten(checkpoint.manifest, model=pairs))


def answering(file: Exported, model: Classifier) -> Callable[[Any], tuple[Tensor, Tensor | None]]:
    """Return a client's function on a graph: probabilities, and the graph's OOD score."""

    def answer(inputs: Any) -> tuple[Tensor, Tensor | None]:
        fed = dict(inputs) if isinstance(inputs, dict) else {"pixel_values": inputs}
        for name in set(file.inputs) - set(fed):
            fed[name] = torch.zeros_like(fed[IDS[0]])
        values = dict(zip(file.outputs, file.run(fed), strict=True))
        return kind_of(model.task).probs(values["logits"]), values.get("ood_score")

    return answer


def check_client(opened: Checkpoint) -> None:
    """Refuse models that no client of a folder reads."""
    if opened.family.graph_clients:
        return
    raise SurgeryError(
        f"{opened.name}: -o DIR/ is only possible for transformers' classifiers",
        hint="Give -o FILE.onnx, which onnxruntime runs.",
    )


def graph_texts(opened: Checkpoint) -> dict[str, str]:
    """Return all texts beside a graph.

    They are the unpruned model's config with its classes, the files that read inputs, and the card.
    """
    manifest, model = opened.manifest, opened.manifest.model
    if model.pooling != OF_WORDS:
        model = model.model_copy(update={"pooling": None})
    about = SingleManifest(
        kind="backbone",
        model=model,
        towers=manifest.towers,
        kept=all_kept(manifest.towers),
        weights_sha256=manifest.weights_sha256,
    )
    kind, task, reader = "Image", "image-classification", "image_processor"
    if "max_length" in model.preprocess:
        kind, task, reader = "Sequence", "text-classification", "tokenizer"
    if model.pooling == OF_WORDS:
        kind, task = "Token", "token-classification"
    usage = "optimum", task, GRAPH_USAGE.format(kind=kind, task=task, reader=reader)
    card = model_card(manifest, usage, folded=manifest.decision, loading_section="")
    described = opened.family.directory(about)
    return {**described, CARD: card, **thresholds(opened, GIVEN), **opened.files}


def decision_tensors(opened: Checkpoint) -> Tensors:
    """Return the tensors of a checkpoint's decision state."""
    tensors = opened.tensors
    names = {name: tensors.stored(name) for name in tensors if name.startswith(PREFIX)}
    return Tensors(tensors.files, names)


def fill_graphs(
    folder: Path, texts: Mapping[str, str], tensors: Tensors, graphs: Mapping[str, bytes]
) -> None:
    """Write a folder: the texts, the decision state's tensors, and the graphs by their names."""
    if len(tensors):
        write_tensors(folder / BESIDE, tensors.planned(), lambda _: {})
    for name, text in texts.items():
        fill(folder / name, text.encode())
    (folder / GRAPHS).mkdir()
    for name, graph in graphs.items():
        fill(folder / GRAPHS / name, graph)
