"""Data sets that are damaged, wrong or made to do harm end in one message and exit 5, whatever the format."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import PIL
import pytest
from hostile_data import MISTAKES, Mistake, damaged, npz, parquet, picture, png_of_size
from PIL import Image

from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.data.images import FORMATS, decode
from hydrasurgeon.data.pictures import InTimm
from hydrasurgeon.errors import DataError
from hydrasurgeon.families.transforms import eval_transform
from hydrasurgeon.files.manifest import Model

PREPROCESS = {"input_size": [3, 8, 8], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
CHOOSES = Model(family="timm", arch="x", num_classes=3)
"""What the data is for: one of three classes."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_every_mistake_is_named(mistake: Mistake, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError) as caught:
        open_data(mistake.make(tmp_path), model=CHOOSES)
    assert mistake.says in caught.value.message
    assert caught.value.exit_code == mistake.code
    assert len(caught.value.message) < 6000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def used(path: Path) -> None:
    """Opened, hashed, and every sample read and made ready for a model."""
    samples = open_data(str(path), limit=4)
    samples.fingerprint()
    prepare = eval_transform(InTimm(PREPROCESS))
    for i in range(len(samples)):
        raw = samples.read(i)
        if isinstance(raw, Image.Image):
            assert prepare(raw).shape == (3, 8, 8)


FILES = {
    "d.npz": npz(
        images=np.zeros((3, 8, 8), np.uint8), labels=np.arange(3), classes=np.array(["a", "b", "c"])
    ),
    "d.jsonl": b'{"text": "one", "label": 0}\n{"text": "two", "label": 1}\n{"text": "3", "label": 2}\n',
    "d.csv": b'text,label\n"one, two",0\nthree,1\n"fo""ur",2\n',
    "d.parquet": parquet(
        {
            b"huggingface": b'{"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'
        },
        text=["a", "b", "c"],
        label=[0, 1, 0],
    ),
    "i.parquet": parquet(image=[{"bytes": picture(), "path": "x"}] * 3, label=["x", "y", "x"]),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """Read, or refused by a DataError: never anything else."""
    path = tmp_path / name
    (tmp_path / "x.png").write_bytes(picture())
    path.write_bytes(FILES[name])
    used(path)
    refused = 0
    for seed in range(100):
        path.write_bytes(damaged(FILES[name], seed))
        try:
            used(path)
        except DataError:
            refused += 1
    assert refused > 5


YCBCR = pytest.param(
    "tiff",
    "YCbCr",
    90,
    marks=pytest.mark.skipif(
        int(PIL.__version__.split(".")[0]) < 13,
        reason="older Pillows do not read the YCbCr that they write",
    ),
)


@pytest.mark.parametrize(
    ("kind", "mode", "value"),
    [
        ("png", "1", 255),
        ("png", "LA", 90),
        ("png", "I;16", 156),
        ("png", "P", 102),
        ("png", "RGBA", 90),
        YCBCR,
        ("tiff", "CMYK", 90),
    ],
)
def test_modes_keep_their_values(kind: str, mode: str, value: int) -> None:
    file = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file, kind)
    else:
        Image.new("L", (8, 8), {"1": 255, "P": 102}.get(mode, 90)).convert("RGB").convert(
            mode
        ).save(file, kind)
    image = decode(file.getvalue(), "x")
    assert image.mode in ("L", "RGB")
    assert np.asarray(image).astype(int) == pytest.approx(value, abs=1)


def test_other_formats_are_not_opened() -> None:
    """EPS would start Ghostscript."""
    for kind in ("eps", "avif", "icns", "pcx", "dds"):
        with pytest.raises(DataError, match="not a readable image"):
            decode(picture(kind, size=(16, 16)), "x")
    assert not {"EPS", "AVIF"} & set(FORMATS)


@pytest.mark.parametrize("size", [(20_000, 20_000), (60_000, 60_000), (20_000, 1), (1, 101)])
def test_pictures_too_large_to_resize(size: tuple[int, int]) -> None:
    """Between Pillow's warning and its error, too; and a thin one that resizing would make huge."""
    warnings.simplefilter("error")  # as for all tests; pytest undoes it
    with pytest.raises(DataError, match=r"pixels|not a readable image"):
        decode(png_of_size(*size), "x")


def test_orientation_is_left_as_it_is_stored() -> None:
    image = Image.new("L", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "jpeg", exif=exif)
    assert decode(file.getvalue(), "x").size == (8, 4)


def test_images_of_a_hub_set_are_opened_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """The datasets library opens any format that Pillow knows."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {
        "image": [{"bytes": picture("eps"), "path": None}, {"bytes": picture(), "path": None}],
        "label": [0, 1],
    }
    table = datasets.Dataset.from_dict(rows, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    samples = open_data("hf:org/name:test")
    assert samples.read(1).size == (8, 8)
    with pytest.raises(DataError, match="row 0: not a readable image"):
        samples.read(0)


@pytest.mark.parametrize(
    "name", ["pandas", "csv", "imagefolder", "pandas/x", "local", "org/set", "script.py"]
)
def test_a_hub_set_is_never_looked_for_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hf:pandas:train` once unpickled a train.pkl of the current folder, and folders here hide those on the hub."""
    import datasets

    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "set").mkdir(parents=True)
    (tmp_path / "local").mkdir()
    (tmp_path / "script.py").touch()

    def load(name: str, config: str | None, split: str) -> None:
        assert name == "pandas/x"  # an organisation of that name may be
        raise FileNotFoundError

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=r"not a data set|read instead"):
        open_data(f"hf:{name}:train")
    assert datasets.config.HF_DATASETS_TRUST_REMOTE_CODE is False


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_minus_one_everywhere_is_no_label(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(picture())
    contents = {
        "npz": npz(images=np.zeros((2, 8, 8), np.uint8), labels=np.array([-1, -1])),
        "jsonl": b'{"text": "a", "label": -1}\n{"text": "b", "label": -1}\n',
    }
    (tmp_path / f"d.{suffix}").write_bytes(contents[suffix])
    assert open_data(str(tmp_path / f"d.{suffix}")).labels is None


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    for name, content in (
        ("d.csv", "text,label\nä,1\n"),
        ("d.jsonl", '{"text": "ä", "label": 1}\n'),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8-sig")
        samples = open_data(str(tmp_path / name))
        assert samples.read(0) == "ä"
        assert samples.labels is not None
        assert (samples.labels.tolist(), samples.classes) == ([0], ("1",))


def test_long_fields_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(f"text,label\n{'x' * 200_000},1\n")
    assert len(str(open_data(str(tmp_path / "d.csv")).read(0))) == 200_000


def test_samples_that_cannot_be_read_are_left_out_on_request(tmp_path: Path) -> None:
    """Missing files and empty rows too: the fingerprint must not stop at them."""
    (tmp_path / "x.png").write_bytes(picture())
    (tmp_path / "d.csv").write_text("image,label\nx.png,0\ngone.png,1\nx.png,1\n")
    samples = open_data(str(tmp_path / "d.csv"))
    assert samples.fingerprint()["rows"] == 3
    batches = Batches(samples, eval_transform(InTimm(PREPROCESS)), batch_size=2, skip_bad=True)
    assert sum(len(batch.index) for batch in batches) == 2
    assert "gone.png" in batches.skipped[0]
    with pytest.raises(DataError, match=r"gone\.png"):
        list(Batches(samples, eval_transform(InTimm(PREPROCESS)), batch_size=2))


def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(picture())
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "self.png").symlink_to("self.png")
    samples = open_data(str(tmp_path))
    assert len(samples) == 2
    with pytest.raises(DataError, match=r"self\.png: cannot be read"):
        samples.read(0)


@pytest.mark.slow
def test_damaged_statistics_do_not_end_the_process() -> None:
    """pyarrow 26 raised in a thread of its own what this file's histogram led it to; others read the file."""
    place = Path(__file__).parent / "histogram.parquet"
    program = "import sys; from hydrasurgeon.data import open_data; open_data(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "DataError" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_decoder_says_nothing_on_the_terminal(tmp_path: Path) -> None:
    """In a process of its own: here pytest hears what is logged, and it would not be printed."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "tiff")
    content = bytearray(file.getvalue())
    at = content.index(b"\x15\x01\x03\x00")  # samples per pixel
    content[at + 8 : at + 10] = b"\x03\x01"
    (tmp_path / "x.tif").write_bytes(content)
    script = (
        "import sys; from pathlib import Path; from hydrasurgeon.data.images import decode\n"
        "try: decode(Path(sys.argv[1]).read_bytes(), 'x')\n"
        "except Exception as error: assert type(error).__name__ == 'DataError'\n"
        "else: raise SystemExit('it was read')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.tif")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
