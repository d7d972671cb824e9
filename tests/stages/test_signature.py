"""verify --signature: what model_signing's own command signs is accepted; any change, or another key, is not."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing.signing import Config

import hydrasurgeon as hs

MAKE = Callable[..., Path]


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new key pair, as PEM files."""
    private = ec.generate_private_key(ec.SECP256R1())
    (folder / f"{name}.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / f"{name}.pub").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return keys(tmp_path, "mine")


@pytest.fixture
def pruned(tiny: MAKE, tmp_path: Path) -> Path:
    return hs.prune(tiny(), method="random", keep=2, out=f"{tmp_path}/pruned/").path


def signed(folder: Path, key: Path, signature: Path) -> Path:
    """What `model_signing sign key FOLDER --private_key KEY --signature SIGNATURE` does."""
    Config().use_elliptic_key_signer(private_key=key).sign(folder, signature)
    return signature


def holds(path: Path, signature: Path, public: Path) -> bool | None:
    checks = hs.verify(path, signature=signature, public_key=public).checks
    return next(check.holds for check in checks if check.name == "signature")


def test_every_file_of_a_directory_counts(
    pruned: Path, tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    signature = signed(pruned, pair[0], tmp_path / "pruned.sig")
    assert holds(pruned, signature, pair[1]) is True
    assert holds(pruned, signature, keys(tmp_path, "other")[1]) is False
    for name in ("README.md", "model.safetensors"):
        content = bytearray((pruned / name).read_bytes())
        content[-1] ^= 1
        (pruned / name).write_bytes(content)
        assert holds(pruned, signature, pair[1]) is False, name
        content[-1] ^= 1
        (pruned / name).write_bytes(content)
    (pruned / "more.py").write_text("print('not signed')")
    assert holds(pruned, signature, pair[1]) is False


def test_a_file_and_its_sidecar(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """Signed alone in a directory, they are accepted wherever they lie, but only both of them."""
    path = tiny()
    (tmp_path / "alone").mkdir()
    for name in ("vit.safetensors", "vit.heads.json"):
        shutil.copy(tmp_path / name, tmp_path / "alone")
    signature = signed(tmp_path / "alone", pair[0], tmp_path / "vit.sig")
    assert holds(path, signature, pair[1]) is True
    assert holds(tiny("other.safetensors", seed=1), signature, pair[1]) is False
    side = tmp_path / "vit.heads.json"
    side.write_text(side.read_text() + " ")  # the same manifest for every other check
    assert holds(path, signature, pair[1]) is False
    side.unlink()
    assert holds(path, signature, pair[1]) is False


@pytest.mark.parametrize(
    "content", ["", "[]", '{"mediaType": 3}', "{" * 5000, '{"verificationMaterial": []}']
)
def test_what_is_no_signature_does_not_hold(
    tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path], content: str
) -> None:
    path = tiny()
    (tmp_path / "fake.sig").write_text(content)
    assert holds(path, tmp_path / "fake.sig", pair[1]) is False


def test_a_tampered_signature_does_not_hold(
    pruned: Path, tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    signature = signed(pruned, pair[0], tmp_path / "pruned.sig")
    bundle = json.loads(signature.read_text())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    forged = payload.replace(b"heads.json", b"heads.jsoN")
    assert forged != payload
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(forged).decode()
    signature.write_text(json.dumps(bundle))
    assert holds(pruned, signature, pair[1]) is False
