"""The valid tiny files that hostile inputs are made from: checkpoints of every family, members and hydras."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MASKS: tuple[dict[str, list[list[int]]], ...] = (
    {"vision": [[0, 2, 3], [], [1]]},
    {"vision": [[0, 2], [1, 3], [1]]},
    {"vision": [[0, 1, 2, 3], [0], [0, 1]]},
)


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file's header and the bytes of its tensors."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def packed(header: bytes | str, body: bytes, *, length: int | None = None) -> bytes:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


@dataclass(frozen=True)
class Checkpoint:
    """One file with its manifest inside, taken apart."""

    name: str
    header: dict[str, Any]
    body: bytes

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads(self.header["__metadata__"]["hydrasurgeon"])

    def file(self) -> bytes:
        return packed(json.dumps(self.header), self.body)


class Bases:
    """Made when first asked for, below one folder; a second process finds what the first has made."""

    def __init__(self, folder: Path, families: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.families = families

    def directory(self, family: str) -> Path:
        """A checkpoint in its library's own layout."""
        path = self.folder / family.replace(" ", "-")
        if not path.exists():
            from tiny_families import FAMILIES

            self.folder.mkdir(parents=True, exist_ok=True)
            made = self.folder / f".{path.name}"
            FAMILIES[family].write(made)
            made.rename(path)
        return path

    @cached_property
    def directories(self) -> dict[str, dict[str, Path]]:
        """Family → the files of its directory."""
        from tiny_families import FAMILIES

        return {
            name: {path.name: path for path in self.directory(name).iterdir()}
            for name in self.families or FAMILIES
        }

    @cached_property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Members and hydras as files with a manifest: plain, ragged, tuned, with a tokenizer, with two towers."""
        made = self.folder / "files"
        if not made.exists():
            self._make_checkpoints(self.folder / ".files")
            (self.folder / ".files").rename(made)
        return tuple(
            Checkpoint(path.stem, *unpacked(path.read_bytes()))
            for path in sorted(made.glob("*.safetensors"))
        )

    def checkpoint(self, name: str) -> Checkpoint:
        return next(base for base in self.checkpoints if base.name == name)

    def path(self, name: str) -> Path:
        assert self.checkpoints
        return self.folder / "files" / f"{name}.safetensors"

    def _make_checkpoints(self, folder: Path) -> None:
        import hydrasurgeon as hs

        folder.mkdir(parents=True)
        vit = self.directory("timm ViT")

        def pruned(source: Path, name: str, mask: Any) -> Path:
            chosen = folder / f"{name}.mask.json"
            chosen.write_text(json.dumps(mask))
            return hs.prune(source, mask=chosen, out=folder / f"{name}.safetensors").path

        scored = folder / "scored.safetensors"
        hs.score(vit, method="random", out=scored)
        members = [pruned(scored, f"member-{i}", mask) for i, mask in enumerate(MASKS)]
        hs.fuse(members, out=folder / "hydra.safetensors")
        tuned = [
            _moved(path, folder / f"tuned-{i}.safetensors") for i, path in enumerate(members[:2])
        ]
        hs.fuse(tuned, out=folder / "hydra-tuned.safetensors", mlp="separate")
        if not self.families or "BERT" in self.families:
            bert = self.directory("BERT")
            texts = [
                pruned(bert, f"text-{i}", {"text": mask["vision"]})
                for i, mask in enumerate(MASKS[:2])
            ]
            hs.fuse(texts, out=folder / "hydra-text.safetensors")
        if not self.families or "OpenCLIP" in self.families:
            clip = self.folder / "small-clip"
            _small_clip(clip)
            both = {"vision": [[0, 1], [0]], "text": [[0], [0, 1]]}
            pairs = [
                pruned(clip, f"clip-{i}", mask)
                for i, mask in enumerate((both, {**both, "text": [[1], []]}))
            ]
            hs.fuse(pairs, out=folder / "hydra-clip.safetensors")
        if not self.families or "ModernBERT" in self.families:
            modern = self.directory("ModernBERT")
            pruned(modern, "modernbert", {"text": MASKS[0]["vision"]})
        for name in ("EVA02", "DINOv3"):
            if not self.families or name in self.families:
                eva = [
                    pruned(self.directory(name), f"{name.lower()}-{i}", mask)
                    for i, mask in enumerate(MASKS[:2])
                ]
                hs.fuse(eva, out=folder / f"hydra-{name.lower()}.safetensors")
        from any_labels import any_labels

        if not self.families or "BERT" in self.families:
            self._read_words(folder)
        with any_labels():
            self._calibrate(folder)

    def table(self, base: Checkpoint) -> Path:
        """Samples that a decided checkpoint answers."""
        assert self.checkpoints
        return self.folder / "data" / ("words.csv" if "words" in base.name else "images.npz")

    def _read_words(self, folder: Path) -> None:
        """A probe, which says what it was trained on, and a bag of words that answers before it."""
        from own_models import probe_folder

        import hydrasurgeon as hs

        place = self.folder / "words"
        place.mkdir()
        probe_folder(place, train=300, val=150, test=20)
        hs.calibrate(
            place / "probe",
            data=str(place / "val.csv"),
            fit_data=str(place / "train.csv"),
            words="cascade",
            ood_score="mds",
            device="cpu",
            out=folder / "decided-words.safetensors",
        )
        (self.folder / "data").mkdir(exist_ok=True)
        (place / "test.csv").rename(self.folder / "data" / "words.csv")

    def _calibrate(self, folder: Path) -> None:
        """Decision states of every kind: without tensors, with them, of a hydra."""
        from tiny_families import FAMILIES

        import hydrasurgeon as hs

        data = FAMILIES["timm ViT"].data(folder, rows=90)
        kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("member-0", "entropy", {}),
            ("hydra", "rmds", {}),
            ("member-1", "vim", {}),
            ("hydra-tuned", "vim", {}),
        )
        for source, score, more in kinds[:2] if self.families else kinds:
            made = hs.calibrate(
                folder / f"{source}.safetensors",
                data=data,
                ood_score=score,
                out=folder / f"decided-{source}.safetensors",
                **more,
            )
            assert made.decision.ood.score == score
        if not self.families:
            hs.calibrate(
                folder / "hydra-tuned.safetensors",
                data=data,
                ood_score="msp",
                cascade=True,
                out=folder / "decided-cascade.safetensors",
            )
        (self.folder / "data").mkdir(exist_ok=True)
        Path(data).rename(self.folder / "data" / "images.npz")


def _moved(source: Path, out: Path) -> Path:
    """A copy with other weights, as tuning leaves it."""
    from tiny_families import FAMILIES  # noqa: F401  (tiny_members imports it by name)
    from tiny_members import tune

    return tune(source, out, seed=len(out.name))


def _small_clip(folder: Path) -> None:
    """An OpenCLIP model without the 49,408 tokens of its vocabulary, which would be most of the file."""
    from tiny_families import write_clip

    write_clip(
        folder,
        config={
            "embed_dim": 8,
            "vision_cfg": {
                "image_size": 14,
                "patch_size": 7,
                "layers": 2,
                "width": 16,
                "head_width": 8,
            },
            "text_cfg": {
                "context_length": 12,
                "width": 16,
                "heads": 2,
                "layers": 2,
                "vocab_size": 50,
            },
        },
    )
