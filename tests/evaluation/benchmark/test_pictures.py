"""Images: decoding, preparation as transformers' own processors do it, sources, the demo's shapes, views."""

import gzip
import io
import struct
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.demo.lexicon import SHAPES as LABELS
from closelook.evaluation.benchmark.demo.shapes import shapes
from closelook.evaluation.benchmark.pictures import Preprocessing, decoded, encoded, look, picture, pixels_of
from closelook.evaluation.benchmark.pictures import file_of as of_memory
from closelook.evaluation.benchmark.reading import Origin
from closelook.evaluation.benchmark.samples import Malformed, is_reject
from closelook.lrp_core.records.types import UserError

SMALL = {"image_size": 24, "patch_size": 4, "num_channels": 3}


def image(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def file_of(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    out = io.BytesIO()
    made = Image.fromarray(pixels)
    (made if mode is None else made.convert(mode)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("size", [(224, 224), (30, 50), (333, 240)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("processor", [ViTImageProcessorPil, DeiTImageProcessorPil], ids=["vit", "deit"])
def test_values_are_those_of_transformers_processor(processor, channels, size):
    settings = {"image_mean": [0.4], "image_std": [0.3]} if channels == 1 else {}
    theirs = processor(**settings)
    ours = Preprocessing.of(theirs.to_dict(), {"image_size": 224, "patch_size": 16, "num_channels": channels})
    pixels = image(*size, channels)
    expected = theirs(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    values = ours.values(ours.fitted(decoded(encoded(pixels))))
    assert values.shape == expected.shape == (channels, 224, 224)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, atol=1e-6, rtol=0)


def test_shortest_edge_and_other_numbers_are_transformers_too():
    theirs = ViTImageProcessorPil(
        size={"shortest_edge": 40},
        crop_size={"height": 32, "width": 32},
        do_center_crop=True,
        rescale_factor=1 / 127.5,
        image_mean=[1.0, 0.9, 0.8],
        image_std=[1.0, 0.7, 0.6],
        resample=3,
    )
    ours = Preprocessing.of(theirs.to_dict(), {"image_size": 32, "patch_size": 8})
    for height, width in ((50, 91), (91, 50), (40, 40)):
        pixels = image(height, width)
        expected = theirs(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(ours.values(ours.fitted(Image.fromarray(pixels))), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_pad": True}, "asks for do_pad"),
        ({"size": {"longest_edge": 3}}, "resizes to"),
        ({"image_mean": [0.5]}, "has 1 numbers as image_mean"),
    ],
)
def test_what_is_not_known_of_the_preparation_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Preprocessing.of(settings, SMALL)


def test_patches_that_do_not_tile_the_image_are_refused():
    with pytest.raises(UserError, match="do not tile images of 24 × 24"):
        Preprocessing.of({}, SMALL | {"patch_size": 5})


def test_key_tells_apart_what_models_see_differently():
    settings = {"size": {"height": 24, "width": 24}}
    keys = [
        Preprocessing.of(settings, SMALL).key,
        Preprocessing.of(settings | {"image_mean": [0.4, 0.5, 0.5]}, SMALL).key,
        Preprocessing.of(settings | {"resample": 3}, SMALL).key,
        Preprocessing.of(settings, SMALL | {"patch_size": 8}).key,
    ]
    assert len(set(keys)) == 4
    assert Preprocessing.of(dict(settings), SMALL).key == keys[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image that can be read"),
        (b"GIF89a and more", "not an image that can be read"),
        (file_of(image(20, 20))[:200], "not an image that can be read"),
        (file_of(image(40, 40), "JPEG")[:400], "not an image that can be read"),
        (file_of(image(8, 8, 1).astype(np.uint16)), "the image has more than 8 bits a channel"),
    ],
    ids=["empty", "gif", "cut PNG", "cut JPEG", "16 bit"],
)
def test_broken_and_other_images_are_malformed(data, reason):
    with pytest.raises(Malformed) as caught:
        decoded(data)
    assert caught.value.reason == reason


def folder_of_classes(root: Path) -> Path:
    for label, seeds in (("cat", (0, 1)), ("dog", (2, 3))):
        (root / label).mkdir(parents=True)
        for seed in seeds:
            (root / label / f"{seed}.png").write_bytes(file_of(image(24, 24, seed=seed)))
    (root / "cat" / "broken.jpg").write_bytes(file_of(image(40, 40), "JPEG")[:300])
    (root / "dog" / "notes.txt").write_text("no image")
    (root / "dog" / "again.PNG").write_bytes(file_of(image(24, 24, seed=2)))
    return root


def test_folder_of_classes_is_read_and_broken_files_are_rejects_with_their_path(tmp_path):
    survey = reading.survey(Origin("images", "image_folder", path=str(folder_of_classes(tmp_path))))
    rows = list(reading.read(survey))
    assert (survey.read, survey.drawn, survey.rejected) == (6, 4, 2)
    assert sorted((row["text"], row["label"]) for row in rows if not is_reject(row)) == [
        ("cat/0.png", "cat"),
        ("cat/1.png", "cat"),
        ("dog/2.png", "dog"),
        ("dog/3.png", "dog"),
    ]
    assert {row["where"]: row["reason"] for row in rows if is_reject(row)} == {
        "cat/broken.jpg": "not an image that can be read",
        "dog/again.PNG": "same content as an earlier row",
    }


def idx(path: Path, values: np.ndarray, magic: int, packed: bool = False) -> None:
    data = struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    images, labels = image(5, 28, 28), np.array([3, 1, 4, 1, 5], np.uint8)
    end = ".gz" if packed else ""
    idx(tmp_path / f"t10k-images-idx3-ubyte{end}", images, 0x803, packed)
    idx(tmp_path / f"t10k-labels-idx1-ubyte{end}", labels, 0x801, packed)
    rows = list(reading.read(reading.survey(Origin("images", "mnist", path=str(tmp_path)))))
    assert [row["label"] for row in rows] == ["3", "1", "4", "1", "5"]
    for row, pixels in zip(rows, images, strict=True):
        np.testing.assert_array_equal(np.asarray(decoded(row["image"])), pixels)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(), "has no labels: put t10k-labels"),
        (
            lambda folder: (folder / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + b"\0\0\0\x05" * 3),
            "its header announces",
        ),
        (lambda folder: (folder / "t10k-images-idx3-ubyte").write_bytes(b"no"), "is no IDX file of images"),
        (
            lambda folder: idx(folder / "t10k-labels-idx1-ubyte", np.zeros(4, np.uint8), 0x801),
            "5 images, but .* 4 labels",
        ),
    ],
    ids=["no labels", "cut", "another file", "fewer labels"],
)
def test_idx_files_that_break_off_are_one_line(tmp_path, damage, message):
    idx(tmp_path / "t10k-images-idx3-ubyte", image(5, 28, 28), 0x803)
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(5, np.uint8), 0x801)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        reading.survey(Origin("images", "mnist", path=str(tmp_path)))


def test_published_digits_are_read(shared):
    survey = reading.survey(Origin("images", "mnist", path=str(shared / "data" / "mnist")))
    rows = list(reading.read(survey))
    assert (survey.read, survey.rejected) == (1000, 0)
    assert [row["label"] for row in rows[:5]] == ["7", "2", "1", "0", "4"]
    assert decoded(rows[0]["image"]).size == (28, 28)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("L", "PNG"), ("RGBA", "PNG"), ("CMYK", "JPEG")])
def test_files_are_read_as_transformers_pipeline_reads_them(mode, kind, orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(image(20, 24, 4), "RGBA").convert(mode)
    stored.save(tmp_path / "picture", kind, exif=exif)
    expected = np.asarray(load_image(str(tmp_path / "picture")))
    read = decoded((tmp_path / "picture").read_bytes())
    np.testing.assert_array_equal(np.asarray(read.convert("RGB")), expected)
    np.testing.assert_array_equal(
        np.asarray(decoded(of_memory(stored)).convert("RGB")), np.asarray(stored.convert("RGB"))
    )


def test_views_of_files_that_a_model_cannot_read_are_rejects():
    rows = [
        picture("image_folder", "a", file_of(image(24, 24)), label="x"),
        picture("image_folder", "b", file_of(image(24, 24, 1)), label="x"),
        picture("image_folder", "c", file_of(image(20, 24)), label="x"),
    ]
    preprocessing = Preprocessing.of({"do_resize": False}, SMALL)
    views, rejects = look(rows, preprocessing)
    assert [view["sample_id"] for view in views] == [rows[0]["sample_id"], rows[1]["sample_id"]]
    grey = np.repeat(image(24, 24, 1)[..., None], 3, axis=2)
    np.testing.assert_array_equal(pixels_of(views[1], preprocessing), grey)
    assert [(reject["sample_id"], reject["reason"]) for reject in rejects] == [
        (rows[2]["sample_id"], "the image is of another size"),
    ]
    assert rejects[0]["detail"] == "20 × 24 pixels, but the model takes 24 × 24 and does not resize"
    [view], [reject] = look(rows[:2], Preprocessing.of({"do_resize": False}, SMALL | {"num_channels": 1}))
    assert view["sample_id"] == rows[1]["sample_id"]
    assert reject["reason"] == "the image has colours, the model reads grey"


def covered_slowly(preprocessing: Preprocessing, mask: np.ndarray) -> np.ndarray:
    """Patches with a marked pixel, of an image that is not resized."""
    rows, columns = preprocessing.grid
    tall, wide = preprocessing.patch
    return np.array(
        [
            mask[tall * row : tall * (row + 1), wide * column : wide * (column + 1)].any()
            for row in range(rows)
            for column in range(columns)
        ]
    )


def test_evidence_of_shapes_is_the_patches_that_share_a_pixel_with_the_shape():
    preprocessing = Preprocessing.of({"size": {"height": 24, "width": 24}}, SMALL)
    drawings = list(islice(shapes(0, "test"), 40))
    views, rejects = look([drawing.row("shapes") for drawing in drawings], preprocessing)
    assert not rejects
    for drawing, view in zip(drawings, views, strict=True):
        assert view["evidence_mask"][0] is False
        np.testing.assert_array_equal(view["evidence_mask"][1:], covered_slowly(preprocessing, drawing.mask))
        np.testing.assert_array_equal(pixels_of(view, preprocessing), drawing.pixels)
        assert view["special_mask"] == [True] + [False] * 36
        assert (view["length"], view["label"]) == (37, LABELS[drawing.label])


def test_evidence_follows_an_image_that_is_resized_and_cropped():
    settings = {"size": {"height": 32, "width": 32}, "do_center_crop": True, "crop_size": {"height": 24, "width": 24}}
    preprocessing = Preprocessing.of(settings, SMALL)
    whole = preprocessing.covered([(0, 0, 64, 64)], (64, 64))
    assert whole[1:].all()
    assert not whole[0]
    assert not preprocessing.covered([(0, 0, 8, 8)], (64, 64)).any()  # 4 pixels from each edge are cut off
    assert np.flatnonzero(preprocessing.covered([(8, 8, 9, 9)], (64, 64))).tolist() == [1]
    assert np.flatnonzero(preprocessing.covered([(8, 15, 9, 17)], (64, 64))).tolist() == [1, 2]


def test_shapes_of_both_sides_differ_and_classes_are_drawn_alike():
    train, test = ([drawing.pixels.tobytes() for drawing in islice(shapes(0, side), 100)] for side in ("train", "test"))
    assert not set(train) & set(test)
    drawings = list(islice(shapes(1, "test"), 100))
    labels = np.array([drawing.label for drawing in drawings])
    assert 0.4 < labels.mean() < 0.6
    for drawing in drawings[:50]:
        mask = np.zeros_like(drawing.mask)
        for top, left, bottom, right in drawing.regions:
            mask[top:bottom, left:right] = True
        np.testing.assert_array_equal(mask, drawing.mask)
    again = [drawing.pixels.tobytes() for drawing in islice(shapes(0, "train"), 5)]
    assert again == train[:5]


def test_regions_outside_the_image_are_refused():
    with pytest.raises(Malformed, match="region outside the image"):
        picture("image_folder", "a", file_of(image(24, 24)), label=None, regions=[(0, 0, 25, 3)])
