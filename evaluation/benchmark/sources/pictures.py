"""Labelled images: files in a folder for each class, and MNIST's IDX files; and the hub's rows."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closelook.evaluation.benchmark.labels import distinct
from closelook.evaluation.benchmark.samples import Malformed, Row
from closelook.evaluation.benchmark.sources.base import HubRows, Source, one_sample
from closelook.evaluation.benchmark.sources.files import Record
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:  # a mistyped key of a config need not wait for numpy and Pillow
    import numpy as np

SUFFIXES = tuple(form for suffix in (".png", ".jpg", ".jpeg", ".webp", ".bmp") for form in (suffix, suffix.upper()))
_IMAGES, _LABELS = 0x803, 0x801  # how IDX files of bytes in three and in one dimension begin


def image_file(file: Path) -> Iterator[Record]:
    """The record of an image file; the name of its folder is the label."""
    where = f"{file.parent.name}/{file.name}"
    yield where, {"name": where, "data": file.read_bytes(), "label": file.parent.name}


def parse_file(record: Any) -> Row:
    """The sample of an image's record. Raises Malformed for bytes that are no image."""
    from closelook.evaluation.benchmark.pictures import picture

    return picture("image_folder", record["name"], record["data"], label=record["label"])


def hub_rows(rows: HubRows) -> Iterator[Record]:
    """The records of a data set on the hub with the columns `image` and `label` (the number of a class)."""
    from datasets import Image

    names = distinct(rows.features["label"].names)  # type: ignore[attr-defined]
    for number, row in enumerate(rows.cast_column("image", Image(decode=False))):  # type: ignore[attr-defined]
        where = f"row {number}"
        if not 0 <= row["label"] < len(names):
            yield (
                where,
                Malformed(
                    "no gold label", f"{row['label']!r} stands for none: take a split whose labels are published"
                ),
            )
            continue
        yield where, {"name": where, "data": row["image"]["bytes"], "label": names[row["label"]]}


def idx_images(file: Path) -> Iterator[Record]:
    """The digits of an IDX file of images, compressed or not, with their labels from the file that belongs to it.

    Other files yield nothing. Raises UserError for a file that breaks off, for a missing file of labels, and for one
    with another number of labels.
    """
    if "images" not in file.name:
        return
    labels_file = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    if not labels_file.is_file():
        raise UserError(f"{file} has no labels: put {labels_file.name} into its folder")
    images, labels = _idx(file, _IMAGES), _idx(labels_file, _LABELS)
    if len(images) != len(labels):
        raise UserError(f"{file} has {len(images)} images, but {labels_file.name} has {len(labels)} labels")
    for at, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        yield f"{file.name}:{at}", {"name": f"{file.name}:{at}", "pixels": pixels, "label": str(label)}


def parse_digit(record: Any) -> Row:
    """The sample of a digit's record, with its pixels as a PNG file."""
    from closelook.evaluation.benchmark.pictures import encoded, picture

    return picture("mnist", record["name"], encoded(record["pixels"]), label=record["label"])


def _idx(file: Path, magic: int) -> np.ndarray:
    """The numbers [N, h, w] or [N] uint8 of an IDX file; `magic` is _IMAGES or _LABELS."""
    import numpy as np

    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file} cannot be unpacked: {' '.join(str(error).split())}") from None
    head = 16 if magic == _IMAGES else 8  # bytes: the magic number, then the length of each dimension
    if len(raw) < head or int.from_bytes(raw[:4]) != magic:
        raise UserError(f"{file} is no IDX file of {'images' if magic == _IMAGES else 'labels'}")
    shape = np.frombuffer(raw[4:head], ">u4").tolist()
    size = math.prod(shape)
    if len(raw) - head != size:
        raise UserError(f"{file} is broken: its header announces {size} bytes, and {len(raw) - head} follow")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


IMAGE_FOLDER = Source(
    name="image_folder",
    title="images in a folder for each class",
    suffixes=SUFFIXES,
    records=image_file,
    rows=one_sample(parse_file),
    nested=True,
    hub="ILSVRC/imagenet-1k",
    hub_splits=("validation",),
    hub_records=hub_rows,
)
MNIST = Source(
    name="mnist",
    title="MNIST (LeCun et al.)",
    url="http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0",
    suffixes=("", ".gz"),
    records=idx_images,
    rows=one_sample(parse_digit),
)
