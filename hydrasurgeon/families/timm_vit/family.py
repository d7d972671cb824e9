"""timm's VisionTransformer family: ViT and DeiT with standard blocks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError, SurgeryError, UsageError
from hydrasurgeon.families.base import BareCheckpoint, Family, Usage
from hydrasurgeon.families.settings import Images, pair, parse, pick_fields
from hydrasurgeon.families.timm_vit import architectures
from hydrasurgeon.families.timm_vit.architectures import (
    INERT,
    SUPPORTED,
    TOWER,
    Architecture,
    Sizes,
    TimmConfig,
    ViTArguments,
    check_whole,
    fits,
)
from hydrasurgeon.families.weights import all_neurons
from hydrasurgeon.files.manifest import Manifest, Model, Tower
from hydrasurgeon.heads import NEURONS, even

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.heads import Kept

USAGE = """
import timm

model = timm.create_model("local-dir:DIR", pretrained=True)
"""
"""Code in a model card that runs the model with timm."""
PREPROCESS = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
"""Keys that are read of timm's data config."""
BLOCK = re.compile(r"blocks\.(\d+)\.")
"""Pattern of the names of modules within a layer."""


class TimmViT(Family):
    name = "timm"
    scheme = "timm"
    example_id = "timm:vit_base_patch16_224.augreg_in21k"
    layout = ("config.json",)
    fresh_spec = "init:timm:NAME[,key=value…]"
    arguments: ClassVar[type[Sizes]] = ViTArguments
    """Arguments of an architecture that a manifest, a config.json and --arch may override."""
    table = staticmethod(architectures.table)
    listed = staticmethod(architectures.weights)
    """All tensors of a model with these constructor arguments."""
    infer = staticmethod(architectures.infer)
    """The architecture behind bare tensors."""

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        tensors, arch, config, where = bare.tensors, bare.arch_name, bare.config, bare.where
        shapes = {name: info.shape for name, info in tensors.items()}
        note, preprocess, labels = None, {}, None
        if arch is None and config and "architecture" in config:
            where = f"{where}: config.json"
            pretrained = config.get("pretrained_cfg") or {}
            names = pretrained.get("label_names") if isinstance(pretrained, Mapping) else None
            read = parse(
                TimmConfig, {"label_names": names, **pick_fields(TimmConfig, config)}, where
            )
            name, classes = read.architecture, read.num_classes
            model_args = {
                key: value for key, value in (read.model_args or {}).items() if key not in INERT
            }
            inner = model_args.pop("num_classes", None)
            classes = inner if classes is None else classes
            arguments = parse(self.arguments, model_args, f"{where}: model_args").written()
            preprocess = {
                key: pretrained[key] for key in PREPROCESS if pretrained.get(key) is not None
            }
            labels = read.label_names
        elif arch is not None:
            name, arguments, classes = self._parse_arch(arch)
            note = self._assumed_heads(name, arguments, arch, where)
        else:
            registered, differing, alike = self.infer(shapes, where)
            name, arguments = registered.name, dict(differing)
            classes = arguments.pop("num_classes", None)
            also = f" (runs like {', '.join(alike[:3])})" if alike else ""
            heads = registered.args["num_heads"]
            note = (
                f"{where}: assumed to be timm:{name}{also}, with {heads} heads in each layer and its "
                "usual preprocessing"
            )
        architecture, overrides = self._configured(name, arguments, where, CheckpointError)
        args = {**architecture.args, **overrides}
        num_classes = classes or next(iter(shapes.get("head.weight", (0,))), 0)
        difference = fits(
            architecture, shapes, {**overrides, "num_classes": num_classes}, self.listed
        )
        if difference:
            hint = "Name the right one: --arch timm:NAME[,key=value…]."
            raise CheckpointError(f"{where}: does not fit timm:{name}: {difference}", hint=hint)
        image_settings = {
            **architecture.preprocess,
            **_input_size(architecture, overrides),
            **preprocess,
        }
        images = parse(Images, image_settings, f"{where}: pretrained_cfg")
        _check_images(args, images, f"{where}: pretrained_cfg", CheckpointError)
        model = Model(
            family="timm",
            arch=name,
            config={"model_args": overrides},
            num_classes=num_classes,
            # Of the weights that training began with, where it changed the classes.
            labels=tuple(labels) if labels and len(labels) == num_classes else None,
            preprocess=images.written(),
        )
        return model, note

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        architecture = self.registered(model.arch)
        if architecture is None or not architecture.prunable:
            raise ManifestError(
                f"{where}: model.arch: {model.arch[:60]!r} of timm cannot be pruned", hint=SUPPORTED
            )
        args = {**architecture.args, **self._overrides(model, where)}
        check_whole(args, f"{where}: model.config", ManifestError)
        super().check(model, towers, where)
        at = f"{where}: model.preprocess"
        _check_images(
            args, parse(Images, model.preprocess, at, error=ManifestError), at, ManifestError
        )

    def repository(self, name: str) -> str:
        # Where vit_base_patch16_224.augreg2_in21k_ft_in1k and the others live.
        return name if "/" in name else f"timm/{name}"

    def towers(self, model: Model) -> dict[str, Tower]:
        args = self._args(model)
        return {TOWER: Tower.of(args["depth"], args["num_heads"], args["embed_dim"])}

    def weights(self, model: Model) -> Iterator[Weight]:
        return self.listed({**self._args(model), "num_classes": model.num_classes})

    def named(self, name: str, where: str) -> Architecture:
        return self.registered(name) or architectures.named(name, where)

    def registered(self, name: str) -> Architecture | None:
        return architectures.registered(name, self.table())

    def fresh_model(self, arch: str) -> Model:
        name, arguments, classes = self._parse_arch(arch)
        architecture, overrides = self._configured(name, arguments, f"timm:{arch}", UsageError)
        return Model(
            family="timm",
            arch=name,
            config={"model_args": overrides},
            num_classes=architecture.args.get("num_classes", 1000) if classes is None else classes,
            preprocess={**architecture.preprocess, **_input_size(architecture, overrides)},
        )

    def _parse_arch(self, text: str) -> tuple[str, dict[str, Any], int | None]:
        """Parse `vit_tiny_patch16_224,embed_dim=128,depth=6` to name, arguments and classes."""
        name, *entries = text.split(",")
        args = {}
        for entry in entries:
            key, equals, value = entry.partition("=")
            if not equals:
                raise UsageError(f"--arch timm:{text}: {entry!r} is not key=value")
            try:
                args[key.strip()] = json.loads(value)
            except ValueError:
                args[key.strip()] = value
        where, classes = f"--arch timm:{text}", args.pop("num_classes", None)
        parse(TimmConfig, {"architecture": name, "num_classes": classes}, where, error=UsageError)
        return name, parse(self.arguments, args, where, error=UsageError).written(), classes

    def _assumed_heads(
        self, name: str, arguments: Mapping[str, Any], arch: str, where: str
    ) -> str | None:
        """Return a note if --arch gives a width of its own without a number of heads, which no shape
        tells.
        """
        registered = self.named(name, where).args
        usual_width = arguments.get("embed_dim") in (None, registered["embed_dim"])
        if usual_width or "num_heads" in arguments:
            return None
        return (
            f"{where}: assumed to have {registered['num_heads']} heads in each layer, as timm:{name} "
            f"has; if it has N: --arch timm:{arch},num_heads=N"
        )

    def _configured(
        self, name: str, arguments: Mapping[str, Any], where: str, error: type[HydraError]
    ) -> tuple[Architecture, dict[str, Any]]:
        """Return a registered architecture that can be pruned, and the arguments that differ."""
        architecture = self.named(name, where)
        if not architecture.prunable:
            raise SurgeryError(
                f"{where}: timm:{name} cannot be pruned: {architecture.why}", hint=SUPPORTED
            )
        overrides = {k: v for k, v in arguments.items() if architecture.args.get(k) != v}
        check_whole({**architecture.args, **overrides}, where, error)
        return architecture, overrides

    def _overrides(self, model: Model, where: str = "the manifest") -> dict[str, Any]:
        """Return the arguments that a manifest records."""
        at = f"{where}: model.config"
        other = next((key for key in model.config if key != "model_args"), None)
        if other is not None:
            raise ManifestError(f"{at}: {other[:60]}: is not a setting that is known here")
        args = model.config.get("model_args", {})
        return parse(self.arguments, args, f"{at}: model_args", error=ManifestError).written()

    def _args(self, model: Model) -> dict[str, Any]:
        return {**self.named(model.arch, "the manifest").args, **self._overrides(model)}

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        config: dict[str, Any] = {
            "architecture": model.arch,
            "num_classes": model.num_classes,
            "model_args": self._overrides(model),
            "pretrained_cfg": {"num_classes": model.num_classes, **model.preprocess},
        }
        if model.labels:
            config["label_names"] = list(model.labels)
        sizes = self.stock_sizes(manifest)
        if sizes is not None:
            config["model_args"] |= sizes
        else:
            config["architecture"] = "hydrasurgeon_vit"  # timm_entry.ENTRY, which imports torch
            config["model_args"] = {
                **config["model_args"],
                "backbone": model.arch,
            }  # read by nothing, for people
        return {"config.json": json.dumps(config, indent=2) + "\n"}

    def stock_sizes(self, manifest: Manifest) -> dict[str, Any] | None:
        if manifest.kind == "hydra" or even(manifest.kept[TOWER]) != manifest.towers[TOWER].heads:
            return None
        if manifest.kept_neurons is None:
            return {}
        model, width = manifest.model, even(manifest.kept_neurons[TOWER])
        dim = manifest.towers[TOWER].dim
        if width is None:
            return None
        ratio = width / dim
        if int(dim * ratio) < width:  # timm rounds down
            ratio = math.nextafter(ratio, math.inf)
        sizes = {"mlp_ratio": ratio}
        tensors = [*self.listed({**self._args(model), "num_classes": model.num_classes, **sizes})]
        # A pool's MLP may take its size from the same ratio, and a gated one may be rounded.
        exact = even(all_neurons(tensors)[f"{TOWER}{NEURONS}"]) == width
        if not exact or _shapes_outside(tensors) != _shapes_outside(self.weights(model)):
            return None
        return sizes

    def usage(self, manifest: Manifest) -> Usage:
        code = USAGE
        if self.stock_sizes(manifest) is None:
            code = USAGE.replace("import ", "import hydrasurgeon, ")
        return "timm", "image-classification", code

    def build(self, model: Model, kept: Kept, *, fresh: bool = False) -> nn.Module:
        import timm

        from hydrasurgeon.anatomy.construction import construction
        from hydrasurgeon.anatomy.projections import resize

        with construction(fresh=fresh):
            args = self._overrides(model)
            module: nn.Module = timm.create_model(
                self.named(model.arch, "the manifest").name,
                pretrained=False,
                num_classes=model.num_classes,
                **args,
            )
        blocks: Any = module.blocks
        for attn, row in zip((block.attn for block in blocks), kept[TOWER], strict=True):
            attn.num_heads, attn.attn_dim, attn.kept_heads = len(row), len(row) * attn.head_dim, row
            resize(attn.qkv, rows=3 * attn.attn_dim)
            resize(attn.proj, columns=attn.attn_dim)
        return module

    def anatomy(self, module: nn.Module) -> Anatomy:
        m: Any = module

        def embed(inputs: Tensor) -> Stack:
            return Stack(m.norm_pre(m.patch_drop(m._pos_embed(m.patch_embed(inputs)))))

        return taken_apart(
            m, embed, tuple(_block(block, layer) for layer, block in enumerate(m.blocks))
        )

    def dropouts(self, module: nn.Module) -> Iterator[nn.Dropout]:
        from torch import nn

        for name, part in module.named_modules():
            if (
                isinstance(part, nn.Dropout)
                and BLOCK.match(name)
                and not name.endswith("attn_drop")
            ):
                yield part


def taken_apart(m: Any, embed: Callable[[Any], Stack], blocks: tuple[Block, ...]) -> Anatomy:
    """Return the parts of a timm model with these blocks.

    It reads the class token (and a distillation token behind it), or all tokens.
    """

    def readout(stack: Stack) -> Tensor:
        return m.forward_head(m.norm(stack.hidden))

    token = m.global_pool == "token" and m.attn_pool is None
    distillation = getattr(m, "dist_token", None)
    loose = [m.cls_token, m.reg_token, m.pos_embed, distillation]
    parts = [m.attn_pool, m.fc_norm, m.head, getattr(m, "head_dist", None)]
    return Anatomy(
        embed=embed,
        embed_parts=(m.patch_embed, m.norm_pre, *(p for p in loose if p is not None)),
        blocks=blocks,
        readout=readout,
        readout_parts=(m.norm, *(p for p in parts if p is not None)),
        reads=(1 if distillation is None else 2) if token else None,
    )


def _shapes_outside(weights: Iterable[Weight]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors but those of the layers' MLPs."""
    return {weight.name: weight.shape for weight in weights if weight.part != "mlp"}


def _input_size(architecture: Architecture, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing that follows the file rather than the registered default."""
    size = dict(architecture.preprocess).get("input_size", [3, 224, 224])
    channels = int(overrides.get("in_chans", size[0]))
    edge = overrides.get("img_size", size[1:])
    height, width = (edge, edge) if isinstance(edge, int) else edge
    changed: dict[str, Any] = {"input_size": [channels, height, width]}
    if channels != size[0]:
        # Means and deviations of colour channels say nothing about other channels.
        changed |= {"mean": [0.5] * channels, "std": [0.5] * channels}
    if [height, width] != list(size[1:]):
        changed["crop_pct"] = 1.0
    return changed


def _check_images(
    args: Mapping[str, Any], images: Images, where: str, error: type[CheckpointError]
) -> None:
    size = images.input_size[1:] if args.get("dynamic_img_size") else pair(args["img_size"])
    images.check(args["in_chans"], size, where, error)


def _block(block: Any, layer: int) -> Block:
    attn = block.attn
    site = Attention(
        tower=TOWER,
        layer=layer,
        heads=attn.kept_heads,
        head_dim=attn.head_dim,
        project=(attn.qkv,),
        out=attn.proj,
        q_norm=attn.q_norm,
        k_norm=attn.k_norm,
        scale=attn.scale,
    )
    return Block(block.norm1, site, block.ls1, block.norm2, block.mlp, block.ls2)


def add_architecture(build: Callable[..., Any]) -> None:
    """Make `timm.create_model` know a function by its name."""
    from timm.models import is_model, register_model

    if not is_model(build.__name__):
        register_model(build)
