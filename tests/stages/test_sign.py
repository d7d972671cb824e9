"""sign: every file of a checkpoint is under the signature, and another key's does not count."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, MissingDependency, OutputError, UsageError
from hydrasurgeon.stages.sign import sign

MAKE = Callable[..., Path]


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new key pair, as PEM files."""
    private = ec.generate_private_key(ec.SECP256R1())
    (folder / f"{name}.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (folder / f"{name}.pub").write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return keys(tmp_path, "mine")


def holds(path: Path, signature: Path, public: Path) -> bool | None:
    checks = hs.verify(path, signature=signature, public_key=public).checks
    return next(check.holds for check in checks if check.name == "signature")


def test_a_file_and_its_sidecar(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    path = tiny()
    done = sign(path, key=pair[0])
    assert done.path == tmp_path / "vit.sig"
    assert [p.name for p in done.files] == ["vit.safetensors", "vit.heads.json"]
    assert holds(path, done.path, pair[1]) is True
    assert holds(path, done.path, keys(tmp_path, "other")[1]) is False
    side = tmp_path / "vit.heads.json"
    text = side.read_text()
    side.write_text(text + " ")  # the same manifest for every other check
    assert holds(path, done.path, pair[1]) is False
    side.write_text(text)
    assert holds(path, done.path, pair[1]) is True
    side.unlink()
    assert holds(path, done.path, pair[1]) is False


def test_a_signature_of_a_neighbour_does_not_count(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    done = sign(tiny(), key=pair[0])
    other = tiny("other.safetensors", seed=1)
    assert holds(other, done.path, pair[1]) is False


def test_every_file_of_a_directory_counts(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    folder = hs.prune(tiny(), method="random", keep=2, out=f"{tmp_path}/pruned/").path
    done = sign(folder, key=pair[0])
    names = {path.name for path in done.files}
    assert names == {"README.md", "config.json", "heads.json", "model.safetensors"}
    assert holds(folder, done.path, pair[1]) is True
    for name in sorted(names - {"config.json", "heads.json"}):
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)
        assert holds(folder, done.path, pair[1]) is False, name
        content[-1] ^= 1
        (folder / name).write_bytes(content)
    (folder / "more.py").write_text("print('not signed')")
    assert holds(folder, done.path, pair[1]) is False


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"mediaType": 3}', "{" * 5000, "\0", '{"verificationMaterial": []}']
)
def test_what_is_no_signature_does_not_hold(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path], content: str) -> None:
    path = tiny()
    (tmp_path / "fake.sig").write_text(content)
    assert holds(path, tmp_path / "fake.sig", pair[1]) is False


def test_a_tampered_signature_does_not_hold(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    import base64
    import json

    path = tiny()
    done = sign(path, key=pair[0])
    bundle = json.loads(done.path.read_text())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    forged = payload.replace(b"vit.heads.json", b"vit.heads.jsoN")
    assert forged != payload
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(forged).decode()
    done.path.write_text(json.dumps(bundle))
    assert holds(path, done.path, pair[1]) is False


def test_mistakes(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    path = tiny()
    with pytest.raises(UsageError, match="not a private key"):
        sign(path, key=pair[1])
    with pytest.raises(UsageError, match="not a private key"):
        sign(path, key=tmp_path / "gone.pem")
    done = sign(path, key=pair[0], out=tmp_path / "s.sig")
    with pytest.raises(OutputError, match="already exists"):
        sign(path, key=pair[0], out=tmp_path / "s.sig")
    sign(path, key=pair[0], out=tmp_path / "s.sig", force=True)
    with pytest.raises(UsageError, match="not a public key"):
        hs.verify(path, signature=done.path, public_key=pair[0])
    with pytest.raises(UsageError, match="whose"):
        hs.verify(path, signature=done.path)
    with pytest.raises(UsageError, match="--public-key requires --signature"):
        hs.verify(path, public_key=pair[1])
    with pytest.raises(UsageError, match="cannot be read"):
        hs.verify(path, signature=tmp_path / "gone.sig", public_key=pair[1])


def test_nothing_of_the_checkpoint_is_replaced(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    path = tiny()
    folder = hs.prune(path, method="random", keep=2, out=f"{tmp_path}/pruned/").path
    before = {each: each.read_bytes() for each in (path, tmp_path / "vit.heads.json", *folder.iterdir())}
    for place in before:
        with pytest.raises(OutputError, match="is an input"):
            sign(path if place.parent == tmp_path else folder, key=pair[0], out=place, force=True)
    assert {each: each.read_bytes() for each in before} == before
    # A signature within the directory is none of its files.
    for _ in range(2):
        done = sign(folder, key=pair[0], out=folder / "model.sig", force=True)
    assert len(done.files) == 4
    assert holds(folder, done.path, pair[1]) is True


def test_names_and_files_of_others(tiny: MAKE, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    path = tiny()
    os.mkfifo(tmp_path / "pipe.sig")
    with pytest.raises(UsageError, match="not a regular file"):
        hs.verify(path, signature=tmp_path / "pipe.sig", public_key=pair[1])
    folder = hs.prune(path, method="random", keep=2, out=f"{tmp_path}/pruned/").path
    (folder / os.fsdecode(b"\xff.txt")).touch()
    with pytest.raises(CheckpointError, match="no name that can be signed"):
        sign(folder, key=pair[0])


def test_without_the_package(tiny: MAKE, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrasurgeon.lookup.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="model-signing"):
        sign(tiny(), key=pair[0])


def test_the_command(
    tiny: MAKE,
    tmp_path: Path,
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny()
    monkeypatch.chdir(tmp_path)
    assert run(["sign", "vit", "--key", "mine.pem"]) == 0
    assert "vit.sig: signs vit.safetensors, vit.heads.json" in capsys.readouterr().out
    line = ["verify", "vit", "--signature", "vit.sig", "--public-key", "mine.pub"]
    assert run(line) == 0
    assert "signature: 2 files, by the key in mine.pub" in capsys.readouterr().out
    keys(tmp_path, "mine")
    assert run(line) == 1
