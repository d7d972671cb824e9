"""Decoders: groups of queries as heads, equal to the library's own models with the same groups masked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paper import SST2
from tiny_families import CLASSES, FAMILIES, HEADS, LAYERS, VOCAB, Family, tokenizer
from tiny_members import RAGGED, logits, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, SurgeryError
from hydrasurgeon.heads import HeadAxis, head_mask, take_heads

ALL = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3")
EACH = pytest.mark.parametrize("family", [FAMILIES[name] for name in ALL], ids=ALL)
ROWS, HEAD_DIM = 2, 8


def stock_model(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForSequenceClassification as Auto

    return Auto.from_pretrained(folder, **options).eval()


def left(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same texts, padded in front."""
    pairs = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    rolled = [ids.roll(int((mask == 0).sum())) for ids, mask in pairs]
    return {"input_ids": torch.stack(rolled), "attention_mask": inputs["attention_mask"].flip(1)}


@torch.inference_mode()
def masked(model: Any, rows: list[list[int]], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The library's own answer with every query of a group that is gone silenced in front of W_O."""

    def silence(row: list[int]) -> Any:
        stays = torch.zeros(HEADS, ROWS * HEAD_DIM)
        stays[row] = 1
        return lambda _, args: (args[0] * stays.flatten().to(args[0].dtype),)

    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(silence(row))
        for layer, row in zip(model.model.layers, rows, strict=True)
    ]
    answer: torch.Tensor = model(**inputs).logits
    for hook in hooks:
        hook.remove()
    return answer


@EACH
def test_a_pruned_model_is_the_librarys_with_groups_masked(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    pruned = member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")
    inputs = family.inputs()
    for dtype, atol in (("float32", 1e-5), ("float64", 1e-12)):
        model = stock_model(tmp_path / "source", dtype=getattr(torch, dtype))
        # Gemma's own attention makes NaN of padding in float64.
        whole = (
            {name: value[[0, 3]] for name, value in inputs.items()}
            if dtype == "float64"
            else inputs
        )
        for padded in (whole, left(whole)):
            expected = masked(model, RAGGED, padded)
            assert (expected - masked(model, [[*range(HEADS)]] * LAYERS, padded)).abs().max() > 1e-2
            found = logits(pruned, padded, dtype)[:, 0]
            # The library's embedding scale and angles are rounded to float32 in one of the two.
            torch.testing.assert_close(
                found, expected, rtol=0, atol=1e-5 if "Gemma" in family.name else atol
            )


@EACH
def test_stock_transformers_loads_a_member_of_equal_layers(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    rows = [[0, 2], [1, 3], [2, 3]]
    folder = member(tmp_path / "source", family, rows, f"{tmp_path / 'm'}/")
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert "auto_map" not in config
    assert "trust_remote_code" not in (folder / "README.md").read_text()
    inputs = family.inputs()
    with torch.inference_mode():
        expected = stock_model(folder)(**inputs).logits
    torch.testing.assert_close(logits(folder, inputs)[:, 0], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        masked(stock_model(tmp_path / "source"), rows, inputs), expected, rtol=0, atol=1e-5
    )
    assert open_checkpoint(folder).manifest.kept == {"text": tuple(map(tuple, rows))}
    assert hs.verify(folder).holds


def test_queries_that_do_not_divide_the_width_need_our_code(tmp_path: Path) -> None:
    """Llama's config refuses them; three groups are six queries, and the width is 32."""
    for name, ours in (("Llama", True), ("Qwen3", False)):
        FAMILIES[name].write(tmp_path / name)
        folder = member(
            tmp_path / name, FAMILIES[name], [[0, 1, 3]] * LAYERS, f"{tmp_path / name}-m/"
        )
        assert ("auto_map" in json.loads((folder / "config.json").read_text())) is ours
        inputs = FAMILIES[name].inputs()
        with torch.inference_mode():
            expected = stock_model(folder, trust_remote_code=ours)(**inputs).logits
        torch.testing.assert_close(logits(folder, inputs)[:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (
            "Llama",
            {
                "rope_theta": 5e5,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0},
            },
        ),
        ("Qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
        (
            "Gemma3",
            {
                "rope_local_base_freq": 100.0,
                "rope_theta": 300.0,
                "rope_scaling": {"rope_type": "linear"},
            },
        ),
        ("Mistral", {"sliding_window": None, "rope_theta": 77.0}),
        ("Gemma2", {"attn_logit_softcapping": None}),
    ],
)
def test_configs_of_older_files_turn_and_hide_as_the_library_does(
    name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Stretched rotations, wavelengths beside them, and nulls that say there is none."""
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    scaling = more.get("rope_scaling")
    if scaling is not None:
        scaling.setdefault("factor", 2.0)
        scaling.setdefault("original_max_position_embeddings", 16)
        if scaling.get("rope_type") == "llama3":
            scaling["high_freq_factor"] = 4.0
    place = tmp_path / "source" / "config.json"
    config = json.loads(place.read_text())
    if {"rope_theta", "rope_scaling"} & {*more}:
        del config["rope_parameters"]
    before = family.stock(tmp_path / "source")(family.inputs())
    place.write_text(json.dumps({**config, **more}))
    expected = family.stock(tmp_path / "source")(family.inputs())
    assert (before - expected).abs().max() > 1e-3
    torch.testing.assert_close(
        logits(tmp_path / "source", family.inputs())[:, 0], expected, rtol=0, atol=1e-5
    )


def test_what_stands_behind_the_last_word_is_not_read(tmp_path: Path) -> None:
    """The library looks for the last token that is not the padding's, whatever the mask says."""
    family = FAMILIES["Qwen3"]
    family.write(tmp_path / "source")
    inputs = family.inputs()
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    inputs["input_ids"][0, 4] = 1
    found = logits(tmp_path / "source", inputs)[:, 0]
    torch.testing.assert_close(found, family.stock(tmp_path / "source")(inputs), rtol=0, atol=1e-5)


def test_a_model_that_generates_gets_a_classifier(tmp_path: Path) -> None:
    import transformers

    family = FAMILIES["Llama"]
    family.write(tmp_path / "classifier")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "classifier")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "generates")
    tokenizer(tmp_path / "generates")
    opened = open_checkpoint(tmp_path / "generates")
    assert opened.manifest.model.num_classes == 0
    assert opened.note is not None
    assert "LlamaForCausalLM has no classifier: `finetune`" in opened.note
    inputs = family.inputs()
    with torch.inference_mode():
        hidden = model.model(**inputs).last_hidden_state
    expected = hidden[torch.arange(5), inputs["attention_mask"].sum(dim=1) - 1]
    torch.testing.assert_close(
        logits(tmp_path / "generates", inputs)[:, 0], expected, rtol=0, atol=1e-5
    )
    tuned = hs.finetune(
        tmp_path / "generates",
        data=family.data(tmp_path),
        recipe=SST2,
        out=f"{tmp_path / 'tuned'}/",
        device="cpu",
        set={"steps": "2", "dropout": "0"},
    )
    assert tuned.manifest.model.num_classes == CLASSES
    with torch.inference_mode():
        expected = stock_model(tuned.path)(**inputs).logits
    torch.testing.assert_close(logits(tuned.path, inputs)[:, 0], expected, rtol=0, atol=1e-6)


def test_the_rows_of_a_group_are_cut_together() -> None:
    """Four groups of three queries with two rows each: group g has rows 6g to 6g + 5."""
    import numpy as np

    whole, spec = np.arange(24 * 5).reshape(24, 5), HeadAxis(0, queries=3)
    cut = take_heads(whole, [1, 3], spec=spec, head_dim=2)
    assert cut[:, 0].tolist() == [5 * row for row in (*range(6, 12), *range(18, 24))]
    assert head_mask(24, [2], spec=spec, head_dim=2).nonzero()[0].tolist() == [*range(12, 18)]


def test_no_pad_token_is_refused_with_the_mend(tmp_path: Path) -> None:
    FAMILIES["Llama"].write(tmp_path / "it")
    place = tmp_path / "it" / "config.json"
    config = json.loads(place.read_text())
    for value in (None, "absent"):
        changed = {**config, "pad_token_id": value}
        place.write_text(json.dumps({k: v for k, v in changed.items() if v != "absent"}))
        with pytest.raises(
            CheckpointError, match="has no pad token, so it cannot tell the last token"
        ) as caught:
            open_checkpoint(tmp_path / "it")
        assert caught.value.exit_code == 3
        assert "Set pad_token_id in its config.json" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            SurgeryError,
            r"length of a text \(dynamic\)",
        ),
        ({"rope_scaling": {"type": "longrope"}}, SurgeryError, r"length of a text \(longrope\)"),
        ({"num_key_value_heads": 3}, CheckpointError, "8 heads cannot share 3 keys alike"),
        ({"use_bidirectional_attention": True}, CheckpointError, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "layer_types lists 1 layers of 3"),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            SurgeryError,
            "gpt2 is a decoder of a type",
        ),
        (
            {"model_type": "gemma3", "architectures": ["X"]},
            SurgeryError,
            "transformers:gemma3 is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_named(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    FAMILIES["Llama"].write(tmp_path / "it")
    place = tmp_path / "it" / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **change}))
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / "it")


def test_words_are_the_checkpoints_own(tmp_path: Path) -> None:
    """tokenizer.json alone says what they are: Qwen's own class of transformers would add one."""
    FAMILIES["Qwen2"].write(tmp_path / "q")
    batch = hs.load(tmp_path / "q", device="cpu").transform.collate(["good film", "bad"])
    assert batch["input_ids"].tolist() == [
        [0, VOCAB["good"], VOCAB["film"], 2],
        [0, VOCAB["bad"], 2, 1],
    ]
