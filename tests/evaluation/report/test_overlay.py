"""The colour map of pictures, measured as people see it, and what the pages are given of an image."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from closelook.evaluation.benchmark.pictures import Preprocessing
from closelook.evaluation.report.heatmaps.overlay import (
    LEVELS,
    colour_map,
    css_ramp,
    overlay,
    patch_names,
    with_picture,
)
from closelook.evaluation.report.heatmaps.plotted import plotted, saved
from closelook.evaluation.report.heatmaps.tokens import Line, data

#: Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(rgb: np.ndarray) -> np.ndarray:
    share = rgb / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    """Of linear RGB [N, 3], by Ottosson's forward matrices."""
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(np.clip(light, 0, None) @ to_lms.T) @ to_lab.T


def test_equal_steps_of_relevance_are_equal_steps_of_colour():
    steps = np.linalg.norm(np.diff(oklab(linear(colour_map().astype(float))), axis=0), axis=1)
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.1)  # to the rounding of 8 bits


def test_both_ends_are_equally_dark_and_the_middle_is_light():
    lightness = oklab(linear(colour_map().astype(float)))[:, 0]
    np.testing.assert_allclose(lightness, lightness[::-1], atol=0.01)
    assert lightness[LEVELS // 2] > 0.97
    assert (np.diff(lightness[: LEVELS // 2 + 1]) > 0).all()


@pytest.mark.parametrize("kind", BLINDNESS)
def test_towards_and_against_differ_with_any_colour_vision(kind):
    seen = oklab(linear(colour_map().astype(float)) @ np.array(BLINDNESS[kind]).T)
    apart = np.linalg.norm(seen - seen[::-1], axis=1)[: LEVELS // 2]  # of equal magnitude, other sign
    assert apart[0] > 0.15
    assert (np.diff(apart) < 0).all()


def test_overlay_is_on_the_scale_of_its_largest_and_zero_is_the_middle():
    shown = np.asarray(Image.open(io.BytesIO(overlay(np.array([[0.0, -2.0], [1.0, np.nan]])))).convert("RGB"))
    colours = colour_map()
    np.testing.assert_array_equal(shown[0, 0], colours[LEVELS // 2])
    np.testing.assert_array_equal(shown[0, 1], colours[0])
    np.testing.assert_array_equal(shown[1, 0], colours[3 * (LEVELS - 1) // 4])
    np.testing.assert_array_equal(shown[1, 1], colours[LEVELS // 2])
    assert overlay(np.zeros((2, 2))) != overlay(np.ones((2, 2)))


def entry():
    preprocessing = Preprocessing.of({}, {"image_size": 8, "patch_size": 4})
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    lines = [Line("<b>A</b>", [0.1, 0.0, -1.0, 3.0, 0.5]), Line("B", [0.0, 2.0, 0.0, 0.0, 0.0])]
    shown = data(
        patch_names(preprocessing), lines, [False, False, False, False, True], [True] + [False] * 4, task="t", model="m"
    )
    return with_picture(shown, pixels, preprocessing, [np.linspace(-1, 1, 64).tolist(), None], "x.png")


def image_of(uri: str) -> Image.Image:
    head, text = uri.split(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_entry_has_the_picture_and_an_overlay_and_words_for_each_line():
    shown = entry()
    assert shown["tokens"] == ["class token", "patch 1, 1", "patch 1, 2", "patch 2, 1", "patch 2, 2"]
    assert image_of(shown["image"]["source"]).size == (8, 8)
    assert [image_of(row["overlay"]).size for row in shown["rows"]] == [(8, 8), (2, 2)]  # pixels; patches
    assert [row["alt"] for row in shown["rows"]] == [
        "relevance by <b>A</b>: most in the patch of row 2, column 1, not on evidence",
        "relevance by B: most in the patch of row 1, column 1, not on evidence",
    ]


@pytest.mark.parametrize("wrong", [{"values": [0.0, np.nan, 0.0, 0.0, 0.0]}, {"pixels": [0.0] * 63 + [np.inf]}])
def test_relevance_of_pictures_that_is_not_finite_is_said_and_has_no_maximum(wrong):
    preprocessing = Preprocessing.of({}, {"image_size": 8, "patch_size": 4})
    line = Line("A", [0.0, 2.0, 0.0, 0.0, 0.0], pixels=[0.0] * 64)._replace(**wrong)
    shown = data(patch_names(preprocessing), [line], [False] * 4 + [True], [True] + [False] * 4)
    [row] = with_picture(shown, np.zeros((8, 8, 3), np.uint8), preprocessing, [line.pixels], "x.png")["rows"]
    assert (row["label"], row["alt"], row["hit"]) == ("A (not finite)", "relevance by A (not finite)", 0)


def test_rows_of_pictures_show_every_method_and_escape_its_name(tmp_path):
    saved(plotted([entry()], "Title"), tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn.count("<image ") == 3
    assert "&lt;b&gt;A&lt;/b&gt;" in drawn
    assert drawn.count("stroke-dasharray") == 3, "evidence is outlined in each"


def test_ramp_of_the_legend_is_the_map():
    colours = css_ramp().split(", ")
    assert colours[0] == "#{:02x}{:02x}{:02x}".format(*colour_map()[0])
    assert colours[-1] == "#{:02x}{:02x}{:02x}".format(*colour_map()[-1])
