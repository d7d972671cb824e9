"""transformers' CLIP and SigLIP with both towers: images are classified by the names of classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.base import BareCheckpoint, Usage
from hydrasurgeon.families.hf_clip.both_towers import ARCHS, read_towers, towers_of, weights
from hydrasurgeon.families.hf_clip.family import HFClip
from hydrasurgeon.families.hf_encoder.companions import (
    CONFIG,
    PREPROCESSOR,
    check_files,
    check_recorded,
    check_size,
    companions,
    files_sha256,
    image_processor,
    preprocess,
)
from hydrasurgeon.families.hf_encoder.family import OWN_TYPE, STOCK, OfImages, is_cut, stock
from hydrasurgeon.families.prompts import NamedClasses, check_prompts
from hydrasurgeon.families.settings import Images, parse
from hydrasurgeon.files.manifest import Manifest, Model, Tower

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.families.weights import Weight

USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")  # transformers.{arch}.from_pretrained("DIR") too, if no head or neuron is gone
"""
"""Code in a model card that runs the model."""


class HFZeroShot(NamedClasses, OfImages):
    name = "transformers"
    scheme = "hf"
    layout = ("config.json",)
    needs_config = True
    refuses_by_config = True
    companions = staticmethod(companions)
    modules = "hydrasurgeon.families.hf_clip.zero_shot_modules"

    def recognises(self, bare: BareCheckpoint) -> bool:
        """Return True for a model of both towers.

        `--arch transformers:CLIPForImageClassification` reads the image tower alone.
        """
        config = stock(bare.config or {})
        arch = ARCHS.get(str(config["model_type"]))
        return arch is not None and config.get("architectures") == [arch] and bare.arch_name is None

    def covers(self, model: Model) -> bool:
        return "text_config" in model.config

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        HFClip().check_config(config, where)

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        config, where = stock(self.required_config(bare)), bare.where
        self.check_config(config, where)
        read = read_towers(config, where)
        check_files(bare.files, where)
        words = _of_texts(bare.files)
        hashed = {"files_sha256": files_sha256(words)} if words else {}
        model = Model(
            family="transformers",
            arch=ARCHS[read.model_type],
            config=read.written(),
            num_classes=0,
            preprocess={**preprocess(read.vision_config, bare.files, where), **hashed},
            task="multi_label" if read.model_type == "siglip" else "single_label",
        )
        alone = f"--arch transformers:{HFClip.kinds[read.model_type].classes[0]}"
        notes = [f"classes are told by their names; {alone} reads the image tower alone"]
        if PREPROCESSOR not in bare.files:
            notes.append(f"no {PREPROCESSOR}: {read.model_type}'s usual preprocessing is assumed")
        return model, f"{where}: {'; '.join(notes)}"

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        config = towers_of(model, f"{where}: model.config")
        if model.arch != ARCHS[config.model_type]:
            raise ManifestError(
                f"{where}: model.arch: {model.arch[:60]!r} is no {config.model_type} of both towers"
            )
        super().check(model, towers, where)
        check_prompts(model, config.zero_shot, where)
        at = f"{where}: model.preprocess"
        check_size(
            config.vision_config,
            parse(Images, model.preprocess, at, error=ManifestError),
            at,
            ManifestError,
        )

    def check_files(self, model: Model, files: Mapping[str, str], where: str) -> None:
        check_recorded(model, _of_texts(files), where)

    def towers(self, model: Model) -> dict[str, Tower]:
        config = towers_of(model)
        return {
            name: tower.tower
            for name, tower in (("vision", config.vision_config), ("text", config.text_config))
        }

    def weights(self, model: Model) -> Iterator[Weight]:
        return weights(towers_of(model))

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        config = {**towers_of(model).library(), "architectures": [model.arch]}
        if is_cut(manifest):
            config |= {"model_type": OWN_TYPE + config["model_type"], "transformers_weights": STOCK}
        return {
            "config.json": json.dumps(config, indent=2, sort_keys=True) + "\n",
            PREPROCESSOR: image_processor(model),
        }

    def usage(self, manifest: Manifest) -> Usage:
        return (
            "transformers",
            "zero-shot-image-classification",
            USAGE.format(arch=manifest.model.arch),
        )

    def tokenizing(
        self, model: Model, files: Mapping[str, str]
    ) -> Callable[[Sequence[str]], Tensor]:
        from hydrasurgeon.families.hf_clip.zero_shot_modules import tokens

        text = towers_of(model).text_config
        called = json.loads(files.get(CONFIG, "{}")).get("tokenizer_class", "")
        facts = (text.model_type, text.max_position_embeddings, text.vocab_size, called)
        return partial(tokens, files=dict(files), facts=facts)

    def config(self, model: Model) -> Any:
        return towers_of(model).vision_config


def _of_texts(files: Mapping[str, str]) -> dict[str, str]:
    """Return the companions without the preprocessor's file, whose content is in the manifest."""
    return {name: text for name, text in files.items() if name != PREPROCESSOR}
