"""Images as samples and as a model's input: decoded by Pillow, prepared as the checkpoint's settings say.

transformers' image processors need torchvision, or must be chosen among several classes. The few steps that vision
transformers need are therefore written here; they give what transformers' processors on Pillow give. Shapes: h, w of an
image as it is stored, H, W of what the model reads, C channels, T = 1 + patches.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from closelook.evaluation.benchmark.encoding import Encoding, view_row
from closelook.evaluation.benchmark.samples import Malformed, Row, rejecting, sample
from closelook.lrp_core.records.types import UserError

SETTINGS = "preprocessor_config.json"  # the file of a checkpoint that says how images are prepared
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # other formats are refused before they are decoded
_CHANNELS = {"L": 1, "RGB": 3}  # by the mode of an image
Region = Sequence[int]  # [top, left, bottom, right) in pixels
#: Settings that a checkpoint leaves out.
_DEFAULTS = {
    "size": {"height": 224, "width": 224},
    "resample": Image.Resampling.BILINEAR,
    "rescale_factor": 1 / 255,
    "image_mean": 0.5,
    "image_std": 0.5,
}
#: Settings that replace a step which a checkpoint turns off.
_WITHOUT: dict[str, dict[str, Any]] = {
    "do_resize": {"size": None},
    "do_rescale": {"rescale_factor": 1.0},
    "do_normalize": {"image_mean": 0.0, "image_std": 1.0},
}
#: Steps of other processors that change pixels and are not supported here.
_UNKNOWN_STEPS = ("do_pad", "do_reduce_labels", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order")


def decoded(data: bytes) -> Image.Image:
    """The image in the bytes of a file, upright, as 8-bit grey (L) or RGB.

    Raises Malformed for bytes that are no image, break off, or have more than 8 bits a channel.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            opened.load()
            return _upright(opened)
    except Malformed:
        raise
    except UnidentifiedImageError:  # its own message names an object in memory
        raise Malformed("not an image that can be read", f"it is none of {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders may raise any error for broken bytes
        raise Malformed("not an image that can be read", " ".join(str(error).split())[:120]) from None


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says, as 8-bit grey (L) or RGB; transparency is left out.

    transformers' `load_image` does the same, but makes grey images RGB at once. Raises Malformed for more than 8 bits a
    channel, which Pillow would clip.
    """
    if image.mode[0] in "IF":  # the modes I, I;16 and F
        raise Malformed("the image has more than 8 bits a channel", f"its mode is {image.mode}")
    turned = ImageOps.exif_transpose(image)
    return turned.convert("L" if turned.mode in ("1", "L", "LA") else "RGB")


def file_of(picture: Any) -> bytes:
    """The PNG file of a picture in memory: an image of Pillow, or an array [h, w] or [h, w, channels] uint8.

    Raises UserError for arrays of another type or shape, and for images of more than 8 bits a channel.
    """
    if not isinstance(picture, Image.Image):
        pixels = np.asarray(picture)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        if (
            pixels.dtype != np.uint8
            or pixels.ndim not in (2, 3)
            or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4))
        ):
            raise UserError(
                "an array with a picture must be [height, width] or [height, width, channels] of type uint8, with 1, 3 "
                f"or 4 channels, not {list(pixels.shape)} of type {pixels.dtype}"
            )
        picture = Image.fromarray(pixels)
    try:
        return encoded(np.asarray(_upright(picture)))
    except Malformed as error:
        raise UserError(f"the picture cannot be explained: {error}") from None


def encoded(pixels: np.ndarray) -> bytes:
    """`pixels` [h, w] or [h, w, 3] uint8 as the bytes of a PNG file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def picture(
    source: str,
    name: str,
    data: bytes,
    *,
    label: str | None,
    regions: Sequence[Region] | None = None,
) -> Row:
    """A row of the generic schema for the image file `data`; its `sample_id` is a hash of its pixels and label.

    `name` says where the image comes from, and stands in the column `text`; `regions` are the evidence. Raises
    Malformed as :func:`decoded` does, and for regions outside of the image.
    """
    image = decoded(data)
    for top, left, bottom, right in regions or ():
        if not (0 <= top < bottom <= image.height and 0 <= left < right <= image.width):
            raise Malformed("region outside the image", f"{[top, left, bottom, right]} of {_size(image)}")
    content = json.dumps([image.mode, image.size, label]).encode() + image.tobytes()
    row = sample(source, name, label=label)
    row["sample_id"] = hashlib.sha256(content).hexdigest()[:20]
    row["image"] = data
    row["regions"] = None if regions is None else [list(region) for region in regions]
    return row


@dataclass(frozen=True)
class Preprocessing:
    """The preparation of a model's images (resize, crop, rescale, normalise) and their cut into patches."""

    height: int
    width: int
    patch: tuple[int, int]  # rows and columns of pixels
    channels: int
    resize: tuple[int, int] | int | None  # to (height, width), or the shorter edge to so many pixels; None: not
    resample: int  # Pillow's number of the filter for resizing
    crop: tuple[int, int] | None  # (height, width) of the middle that is kept; None: all
    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocessing:
        """The preparation by a checkpoint's `settings` (preprocessor_config.json) and its `config` (config.json).

        Raises UserError for a step or size that is not supported, and for patches that do not tile the image.
        """
        for step in _UNKNOWN_STEPS:
            if settings.get(step):
                raise UserError(f"its {SETTINGS} asks for {step}, which closelook does not support")
        written: dict[str, Any] = {**_DEFAULTS, **settings}
        for step, without in _WITHOUT.items():
            if not written.get(step, True):
                written |= without
        height, width = _pair(config.get("image_size", 224))
        patch = _pair(config.get("patch_size", 16))
        if height % patch[0] or width % patch[1]:
            raise UserError(f"patches of {patch[0]} × {patch[1]} pixels do not tile images of {height} × {width}")
        channels = config.get("num_channels", 3)
        crop = None
        if settings.get("do_center_crop"):
            crop = _box(
                settings.get("crop_size", settings.get("size")), "crops to {}: closelook knows height and width"
            )
        return cls(
            height,
            width,
            patch,
            channels,
            resize=_edges(written["size"]),
            resample=written["resample"],
            crop=crop,
            rescale=written["rescale_factor"],
            mean=_per_channel(written["image_mean"], channels, "image_mean"),
            std=_per_channel(written["image_std"], channels, "image_std"),
        )

    @cached_property
    def key(self) -> str:
        """``image-<hash8>``: equal for models that get the same pixels and patches of every image."""
        return f"image-{hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]}"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch[0], self.width // self.patch[1]

    @property
    def tokens(self) -> int:
        """T, the number of tokens: the class token, then the patches row by row."""
        return 1 + self.grid[0] * self.grid[1]

    @property
    def black(self) -> tuple[float, ...]:
        """The value of a black pixel by channel: zero before normalisation."""
        return tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))

    def fitted(self, image: Image.Image) -> np.ndarray:
        """The resized, cropped image [H, W, C] uint8, before rescaling. Raises Malformed for another mode or size."""
        if self.channels == _CHANNELS["RGB"]:
            image = image.convert("RGB")
        if _CHANNELS[image.mode] != self.channels:
            raise Malformed("the image has colours, the model reads grey")
        if self.resize is not None:
            image = image.resize(self._resized(*image.size), resample=self.resample)
        pixels = np.asarray(image).reshape(image.height, image.width, self.channels)
        if self.crop is not None:
            pixels = _middle(pixels, self.crop)
        if pixels.shape[:2] != (self.height, self.width):
            raise Malformed(
                "the image is of another size",
                f"{_size(image)} pixels, but the model takes {self.height} × {self.width} and does not resize",
            )
        return pixels

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """The model's input [C, H, W] float32 from `pixels` [H, W, C] uint8."""
        scaled = (pixels.astype(np.float64) * self.rescale).astype(np.float32)
        normalised = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def covered(self, regions: Iterable[Region], size: tuple[int, int]) -> np.ndarray:
        """[T] bool, True for patches that share a pixel with one of `regions` of an image of `size` (w, h).

        The class token is False.
        """
        patches = np.zeros(self.grid, bool)
        wide, tall = self._resized(*size)
        cut_top, cut_left = ((tall - self.height) // 2, (wide - self.width) // 2) if self.crop else (0, 0)
        for top, left, bottom, right in regions:
            rows = self._patches(top, bottom, tall / size[1], cut_top, 0)
            columns = self._patches(left, right, wide / size[0], cut_left, 1)
            patches[rows, columns] = True
        return np.append(False, patches)

    def _patches(self, start: int, end: int, scale: float, cut: int, axis: int) -> slice:
        """The patches along an axis (0: rows, 1: columns) in which the pixels [start, end) of the image lie.

        The image is resized by `scale`, then `cut` pixels are cut off at its beginning.
        """
        first, last = (start * scale - cut) / self.patch[axis], (end * scale - cut) / self.patch[axis]
        return slice(max(0, int(np.floor(first + 1e-9))), max(0, int(np.ceil(last - 1e-9))))

    def _resized(self, wide: int, tall: int) -> tuple[int, int]:
        """(w, h) of the resized image, from those of the image."""
        if self.resize is None:
            return wide, tall
        if isinstance(self.resize, tuple):
            return self.resize[1], self.resize[0]
        longer = int(self.resize * max(wide, tall) / min(wide, tall))
        return (self.resize, longer) if wide <= tall else (longer, self.resize)


def look(rows: Iterable[Row], preprocessing: Preprocessing) -> tuple[list[Row], list[Row]]:
    """(view rows, reject rows) of generic rows with an image, one for each row that came in.

    The explained class is the model's prediction; the sample's own label is kept to judge it.
    """
    views: list[Row] = []
    rejects: list[Row] = []
    for row in rows:
        with rejecting(rejects, "view", sample_id=row["sample_id"]):
            views.append(view_of(row, preprocessing))
    return views, rejects


def view_of(row: Row, preprocessing: Preprocessing) -> Row:
    """The view row of a generic row with an image.

    Raises Malformed for a row without one, for an image that the model cannot read, and for regions that are cropped.
    """
    if row["image"] is None:
        raise Malformed("a text, but the model reads images")
    image, tokens = decoded(row["image"]), preprocessing.tokens
    pixels = preprocessing.fitted(image)
    evidence = None
    if row["regions"]:
        covered = preprocessing.covered(row["regions"], image.size)
        if not covered.any():
            raise Malformed("no patch has evidence", "the regions lie where the image is cropped")
        evidence = covered
    patches = Encoding([0] * tokens, np.zeros((tokens, 2), np.int32), np.arange(tokens) == 0)
    shown = {"label": row["label"], "pixels": pixels.tobytes()}
    return view_row(row, patches, 0, target=None, evidence=evidence, **shown)


def pixels_of(view: Mapping[str, Any], preprocessing: Preprocessing) -> np.ndarray:
    """The pixels [H, W, C] uint8 of a view row."""
    flat = np.frombuffer(view["pixels"], np.uint8)
    return flat.reshape(preprocessing.height, preprocessing.width, preprocessing.channels)


def _pair(value: Any) -> tuple[int, int]:
    """(height, width) from a list of both, or from a number that stands for both."""
    tall, wide = value if isinstance(value, list | tuple) else (value, value)
    return int(tall), int(wide)


def _edges(size: Any) -> tuple[int, int] | int | None:
    """`Preprocessing.resize` from the setting `size`. Raises UserError for a form that is not supported."""
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return int(size["shortest_edge"])
    return None if size is None else _box(size, "resizes to {}: closelook knows height and width, or shortest_edge")


def _box(size: Any, message: str) -> tuple[int, int]:
    """(height, width) of a setting. Raises UserError for another form, with `message`, into which `size` is put."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and set(size) == {"height", "width"}:
        return int(size["height"]), int(size["width"])
    raise UserError(f"its {SETTINGS} {message.format(size)}")


def _per_channel(value: Any, channels: int, name: str) -> tuple[float, ...]:
    """A number for each channel; a single number stands for all. Raises UserError for another number of them."""
    numbers = tuple(map(float, value)) if isinstance(value, list | tuple) else (float(value),) * channels
    if len(numbers) != channels:
        raise UserError(f"its {SETTINGS} has {len(numbers)} numbers as {name}, but the model has {channels} channels")
    return numbers


def _middle(pixels: np.ndarray, crop: tuple[int, int]) -> np.ndarray:
    """The middle `crop` (height, width) of `pixels` [h, w, C]. Raises Malformed for a smaller image."""
    top, left = ((have - want) // 2 for have, want in zip(pixels.shape, crop, strict=False))
    if top < 0 or left < 0:
        raise Malformed("the image is smaller than what is cut out of it", f"{pixels.shape[:2]} for {crop}")
    return pixels[top : top + crop[0], left : left + crop[1]]


def _size(image: Image.Image) -> str:
    """Height and width for messages, as "28 × 28"."""
    return f"{image.height} × {image.width}"
