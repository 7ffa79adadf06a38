"""Figures of texts in other scripts: a font that has their letters, or a warning that names them; right to left."""

import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager

from closelook.evaluation.report.heatmaps.layout import line_starts
from closelook.evaluation.report.heatmaps.plotted import plotted, saved
from closelook.evaluation.report.heatmaps.tokens import Line, data

HAN = "\U0002a6df"  # so rare that no font of a usual machine has it


def entry(tokens):
    return data(tokens, [Line("lrp", [1.0] * len(tokens))], target="target", model="m")


@pytest.fixture
def font(tmp_path):
    """An installed font that has the letter HAN alone."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 800), (800, 800), (800, 0)):
        pen.lineTo(point)
    pen.closePath()
    glyphs = {".notdef": TTGlyphPen(None).glyph(), "han": pen.glyph()}
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap({ord(HAN): "han"})
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Of Tests", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path = tmp_path / "of_tests.ttf"
    builder.save(path)
    before = list(fontManager.ttflist)
    fontManager.addfont(path)
    yield "Of Tests"
    fontManager.ttflist[:] = before


def test_a_letter_that_no_font_has_is_named():
    with pytest.warns(UserWarning, match=f"no installed font has {HAN}: install one that has"):
        plotted([entry(["the", f" {HAN}"])], "title")


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_letter_is_drawn_with_a_font_that_has_it(font, suffix, tmp_path):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        figure = plotted([entry(["the", f" {HAN}"])], "title")
        saved(figure, tmp_path / f"figure.{suffix}")
    assert not seen
    [text] = [text for text in figure.axes[0].texts if text.get_text() == HAN]
    assert font in text.get_fontfamily()


def test_neighbouring_words_from_right_to_left_stand_so():
    tokens = ["see", " مرحبا", " 12", " عالم", " end"]
    starts, lines = line_starts(tokens, 80)
    assert lines == 1
    at = [letter for _, letter in starts]
    assert at[0] < at[3] < at[2] < at[1] < at[4]
    assert at == [0, 12, 9, 4, 18]


def test_lines_from_right_to_left_break_as_others_do():
    starts, lines = line_starts([" مرحبا", " عالم", " بيت"], 10)
    assert lines == 2
    assert [line for line, _ in starts] == [0, 0, 1]
    assert starts[0][1] > starts[1][1]
    assert starts[2] == (1, 0)
