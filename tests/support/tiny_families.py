"""Tiny random checkpoints of every family, as their own libraries write them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from cached import once
from fitted_heads import solved
from safetensors.torch import load_file, save_file

from hydrasurgeon.heads import Head

WORDS = ("good", "bad", "dull", "fine", "film", "plot", "very", "not", "a", "the")
VOCAB = {w: i for i, w in enumerate(("[CLS]", "[PAD]", "[SEP]", "[UNK]", *WORDS))}
CLASSES = 3
LAYERS, HEADS, DIM = 3, 4, 32
KEPTS = ([[0, 1, 2, 3], [0, 1], [1, 2, 3]], [[0, 1, 2, 3], [1, 3], [0]], [[0, 1, 2, 3], [], [0, 2]])
"""Heads of three members."""


@dataclass(frozen=True)
class Family:
    """A tiny model: a function that writes it, its own library's forward pass, and its inputs."""

    name: str
    tower: str
    make: Callable[[Path], None]
    stock: Callable[[Path], Callable[[Any], torch.Tensor]]
    towers: tuple[str, ...] = ()
    """Towers whose heads are cut, if not `tower` (which data run through) alone."""
    library: str = "transformers"
    typed: bool = False
    """True if inputs are pairs of texts, whose types tell them apart."""

    def write(self, folder: Path) -> None:
        """Write one; its weights are drawn once in a process."""
        torch.manual_seed(0)
        once((self, folder.name, CLASSES), folder, self.make)

    def in_each_tower(self, rows: Any) -> dict[str, Any]:
        """Return the rows for every tower."""
        return dict.fromkeys(self.towers or (self.tower,), rows)

    @property
    def is_text(self) -> bool:
        return self.tower == "text"

    def inputs(self, rows: int = 5, dtype: torch.dtype = torch.float32) -> Any:
        generator = torch.Generator().manual_seed(3)
        if not self.is_text:
            return torch.randn(rows, 3, 28, 28, generator=generator).to(dtype)
        ids = torch.randint(4, len(VOCAB), (rows, 9), generator=generator)
        lengths = torch.tensor([9, 4, 6, 9, 2, 7, 3])[:rows]
        mask = (torch.arange(9)[None] < lengths[:, None]).long()
        inputs = {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}
        if self.typed:
            inputs["token_type_ids"] = (torch.arange(9) > 3).long().expand(rows, 9) * mask
        return inputs

    def data(self, folder: Path, rows: int = 24, seed: int = 0) -> str:
        return learnable(folder, self.tower, rows, seed)


def learnable(folder: Path, tower: str, rows: int, seed: int = 0) -> str:
    """Write samples whose class shows in a word or in a bright band; no two are alike."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % CLASSES
    if tower != "text":
        pixels = rng.integers(0, 100, (rows, 28, 28, 3), dtype=np.uint8)
        for i, label in enumerate(truth):
            pixels[i, 9 * label : 9 * label + 9] = 230
        np.savez(folder / "data.npz", images=pixels, labels=truth.astype(np.int64))
        return str(folder / "data.npz")
    texts: dict[str, int] = {}
    for label in truth:
        for length in itertools.count(rng.integers(1, 6)):
            text = " ".join([WORDS[label], *rng.choice(WORDS[4:], size=min(length, 9))])
            if text not in texts:
                break
        texts[text] = int(label)
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in texts.items()]
    (folder / "data.jsonl").write_text("".join(lines))
    return str(folder / "data.jsonl")


def teach(folder: Path, tower: str) -> None:
    """Give a random body the classifier that tells the classes of `learnable` by least squares, with all
    heads and with those of `KEPTS`: what is calibrated must know something of its labels.
    """
    cuts = [
        [
            Head(tower, layer, at)
            for layer, row in enumerate(kept)
            for at in {*range(HEADS)} - {*row}
        ]
        for kept in ([range(HEADS)] * LAYERS, *KEPTS)
    ]
    with TemporaryDirectory() as place:
        head = solved(folder, learnable(Path(place), tower, 90), ridge=1.0, cuts=cuts)
    weights = folder / "model.safetensors"
    state = load_file(weights)
    names = [name for name, tensor in state.items() if tensor.shape == head[:, :-1].shape]
    if not names:  # DeiT has two
        return
    (name,) = names
    state[name] = torch.from_numpy(head[:, :-1]).float().contiguous()
    bias = name.removesuffix("weight") + "bias"
    if bias in state:
        state[bias] = torch.from_numpy(head[:, -1]).float().contiguous()
    save_file(state, weights, metadata={"format": "pt"})


def tokenizer(folder: Path, end: str = "[SEP]") -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = VOCAB if end in VOCAB else {**VOCAB, end: len(VOCAB)}
    word_tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    word_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A {end}",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2), (end, vocab[end])],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_max_length=24,
    ).save_pretrained(folder)


TEXT = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": len(VOCAB),
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
IMAGE = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 28,
    "patch_size": 7,
}


def transformers_model(cls: str, config: dict[str, Any], seed: int = 0) -> Any:
    import transformers

    model_class = getattr(transformers, cls)
    torch.manual_seed(seed)
    model_config = model_class.config_class(**config)
    model_config.num_labels = CLASSES
    model = model_class(model_config).eval()
    with torch.no_grad():
        # Large enough that every head and every mistake shows.
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.normal_(0, 0.25)
    return model


def hf(name: str, tower: str, cls: str, nested: str | None = None, **config: Any) -> Family:
    def write(folder: Path) -> None:
        fields = {**(TEXT if tower == "text" else IMAGE), **config}
        fields = fields if nested is None else {nested: fields}
        transformers_model(cls, fields).save_pretrained(folder)
        if tower == "text":
            tokenizer(folder)
        if CLASSES > 1 and "ForToken" not in cls:
            teach(folder, tower)

    def stock(folder: Path) -> Callable[[Any], torch.Tensor]:
        import transformers

        model = getattr(transformers, cls).from_pretrained(folder).eval()
        return lambda inputs: (
            model(**inputs) if isinstance(inputs, dict) else model(inputs)
        ).logits.detach()

    return Family(name, tower, write, stock)


def modernbert(name: str, kind: str = "Sequence", **config: Any) -> Family:
    """Return a ModernBERT with a global layer and two local ones, whose windows are smaller than
    the texts.
    """
    return hf(
        name,
        "text",
        f"ModernBertFor{kind}Classification",
        local_attention=4,
        reference_compile=False,
        bos_token_id=0,
        cls_token_id=0,
        eos_token_id=2,
        sep_token_id=2,
        **config,
    )


def deberta(name: str, kind: str = "Sequence", **config: Any) -> Family:
    """Return a DeBERTa with both terms of distances, and without positions of tokens. Texts are
    longer than the distances that it tells apart.
    """
    distances = {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
    }
    return hf(name, "text", f"DebertaV2For{kind}Classification", **{**distances, **config})


def decoder(name: str, cls: str, **config: Any) -> Family:
    """Return a decoder with four heads of two queries each, and windows smaller than the texts."""
    return hf(
        name,
        "text",
        cls,
        num_attention_heads=2 * HEADS,
        num_key_value_heads=HEADS,
        head_dim=8,
        max_position_embeddings=64,
        **config,
    )


def timm_family(name: str, architecture: str, **more: Any) -> Family:
    """Return a registered architecture with tiny sizes."""
    sizes = {"img_size": 28, "patch_size": 7, "embed_dim": DIM, "depth": LAYERS, "num_heads": HEADS}
    write = partial(write_timm, architecture=architecture, arguments={**sizes, **more})
    return Family(name, "vision", write, stock_timm, library="timm")


def write_timm(folder: Path, architecture: str, arguments: dict[str, Any]) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=CLASSES, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.25)
    config = {
        "architecture": architecture,
        "num_classes": CLASSES,
        "model_args": arguments,
        "pretrained_cfg": {"input_size": [3, 28, 28], "crop_pct": 1.0},
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    teach(folder, "vision")


def stock_timm(folder: Path) -> Callable[[Any], torch.Tensor]:
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return lambda inputs: model(inputs).detach()


CLIP = {
    "embed_dim": 16,
    "vision_cfg": {
        "image_size": 28,
        "patch_size": 7,
        "layers": LAYERS,
        "width": DIM,
        "head_width": 8,
    },
    "text_cfg": {"context_length": 12, "width": DIM, "heads": HEADS, "layers": LAYERS},
}
NAMES = ("cat", "dog", "bird")
ADJECTIVES = ("good", "bad", "dull")


def write_clip(folder: Path, seed: int = 0, config: dict[str, Any] | None = None) -> None:
    """Write OpenCLIP's layout, with the class names that `score` records beside it."""
    from copy import deepcopy

    import open_clip

    import hydrasurgeon as hs

    config = config or CLIP
    torch.manual_seed(seed)
    model = open_clip.CLIP(**deepcopy(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "logit_scale":
                parameter.normal_(0, 0.25)
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    weights = folder / "open_clip_model.safetensors"
    save_file(model.state_dict(), weights, metadata={"format": "pt"})
    hs.score(folder, method="random", classes=",".join(NAMES))


def stock_clip(folder: Path) -> Callable[[Any], torch.Tensor]:
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}").eval()
    read = open_clip.get_tokenizer(f"local-dir:{folder}")
    classes = open_clip.build_zero_shot_classifier(model, read, NAMES, ["A photo of a {}."])

    @torch.no_grad()
    def run(inputs: Any) -> torch.Tensor:
        return model.logit_scale.exp() * model.encode_image(inputs, normalize=True) @ classes

    return run


def zero_shot(name: str, cls: str, **towers: Any) -> Family:
    """Return a model of both towers in transformers' layout, with the class names that `score`
    records.
    """

    def write(folder: Path) -> None:
        import hydrasurgeon as hs

        end = len(VOCAB)
        text = {
            **TEXT,
            "vocab_size": end + 1,
            "max_position_embeddings": 12,
            "bos_token_id": 0,
            "eos_token_id": end,
        }
        model = transformers_model(cls, {"vision_config": IMAGE, "text_config": text, **towers})
        with torch.no_grad():
            model.logit_scale.fill_(1.0)
        model.save_pretrained(folder)
        tokenizer(folder, end="[END]")
        hs.score(folder, method="random", classes=",".join(ADJECTIVES), template=["a {label} film"])

    def stock(folder: Path) -> Callable[[Any], torch.Tensor]:
        import transformers

        model = getattr(transformers, cls).from_pretrained(folder).eval()
        read = transformers.AutoTokenizer.from_pretrained(folder)
        texts = [f"a {name} film" for name in ADJECTIVES]
        ids = read(texts, padding="max_length", max_length=12, return_tensors="pt")["input_ids"]
        return lambda images: model(input_ids=ids, pixel_values=images).logits_per_image.detach()

    return Family(name, "vision", write, stock, ("vision", "text"))


FAMILIES = {
    family.name: family
    for family in (
        timm_family("timm ViT", "vit_tiny_patch16_224"),
        timm_family("DINOv3", "vit_small_patch16_dinov3"),
        timm_family(
            "DINOv3 with biases and SwiGLU",
            "vit_small_plus_patch16_dinov3_qkvb",
            global_pool="token",
        ),
        timm_family("EVA02", "eva02_tiny_patch14_224"),
        timm_family("EVA02 with separate projections", "eva02_base_patch14_224"),
        timm_family("SigLIP", "vit_base_patch16_siglip_224"),
        hf("BERT", "text", "BertForSequenceClassification"),
        hf("RoBERTa", "text", "RobertaForSequenceClassification", type_vocab_size=1),
        hf("XLM-RoBERTa", "text", "XLMRobertaForSequenceClassification", type_vocab_size=1),
        hf("CamemBERT", "text", "CamembertForSequenceClassification", type_vocab_size=1),
        hf(
            "DistilBERT",
            "text",
            "DistilBertForSequenceClassification",
            dim=DIM,
            n_layers=LAYERS,
            n_heads=HEADS,
            hidden_dim=48,
        ),
        hf("ELECTRA", "text", "ElectraForSequenceClassification", embedding_size=16),
        hf("MPNet", "text", "MPNetForSequenceClassification"),
        modernbert("ModernBERT"),
        modernbert(
            "ModernBERT pooling by mean",
            classifier_pooling="mean",
            attention_bias=True,
            norm_bias=True,
        ),
        deberta(
            "DeBERTa-v3",
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_buckets=6,
            type_vocab_size=0,
        ),
        deberta("DeBERTa-v2 with projected distances", embedding_size=16, type_vocab_size=2),
        decoder("Llama", "LlamaForSequenceClassification", attention_bias=True, mlp_bias=True),
        decoder("Mistral", "MistralForSequenceClassification", sliding_window=4),
        decoder(
            "Qwen2",
            "Qwen2ForSequenceClassification",
            use_sliding_window=True,
            sliding_window=4,
            max_window_layers=1,
        ),
        decoder("Qwen3", "Qwen3ForSequenceClassification"),
        decoder(
            "Gemma2",
            "Gemma2ForSequenceClassification",
            sliding_window=4,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=5.0,
        ),
        decoder(
            "Gemma3",
            "Gemma3TextForSequenceClassification",
            sliding_window=4,
            query_pre_attn_scalar=8,
            sliding_window_pattern=2,
        ),
        hf("ViT", "vision", "ViTForImageClassification"),
        hf("DeiT", "vision", "DeiTForImageClassification"),
        hf("DeiT distilled", "vision", "DeiTForImageClassificationWithTeacher"),
        hf("DINOv2", "vision", "Dinov2ForImageClassification", mlp_ratio=2),
        hf(
            "DINOv2 with registers",
            "vision",
            "Dinov2WithRegistersForImageClassification",
            mlp_ratio=2,
        ),
        hf("CLIP", "vision", "CLIPForImageClassification", "vision_config"),
        hf("SigLIP 2", "vision", "SiglipForImageClassification", "vision_config"),
        zero_shot("CLIP by class names", "CLIPModel", projection_dim=16),
        zero_shot("SigLIP by class names", "SiglipModel"),
        Family("OpenCLIP", "vision", write_clip, stock_clip, ("vision", "text"), "open_clip"),
    )
}

# One of each library.
QUICK = ("timm ViT", "BERT", "OpenCLIP")
# No two of them share their blocks or their tensors' layout; the others are like one of them.
KINDS = (
    *QUICK,
    "DINOv3",
    "EVA02",
    "DistilBERT",
    "MPNet",
    "ModernBERT",
    "DeBERTa-v3",
    "Qwen3",
    "Gemma2",
    "DINOv2",
    "DINOv2 with registers",
    "CLIP",
    "SigLIP 2",
    "CLIP by class names",
    "SigLIP by class names",
)
ONE_CLASS = [name for name in KINDS if name != "SigLIP by class names"]
CLASSIFIERS = [
    name for name in KINDS if FAMILIES[name].library == "transformers" and not FAMILIES[name].towers
]
"""Families that AutoModelFor…Classification loads."""
# RoBERTa under another name, and decoders that differ from one of the above in a setting.
NAMESAKES = ("XLM-RoBERTa", "CamemBERT", "Llama", "Mistral", "Qwen2", "Gemma3")


def thoroughly(*names: str) -> list[Any]:
    """Return test parameters: these families, or one of each kind. Most of them are slow tests."""
    return [
        pytest.param(
            FAMILIES[n], id=n.replace(" ", "-"), marks=() if n in QUICK else pytest.mark.slow
        )
        for n in names or KINDS
    ]


def dinov2_without_dropout() -> None:
    """Skip where transformers' DINOv2 has dropout in its blocks still, and its ViT calls its own otherwise."""
    from transformers.models.dinov2 import modeling_dinov2

    if hasattr(modeling_dinov2, "Dinov2SelfOutput"):
        pytest.skip("transformers is older than DINOv2 without dropout")
