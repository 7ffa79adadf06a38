"""A sample and what every method says of its tokens, as a figure."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from closelook.evaluation.report.heatmaps.layout import letters_of, line_starts, visible
from closelook.evaluation.report.heatmaps.plotted import plotted, saved
from closelook.evaluation.report.heatmaps.tokens import Line, colour, data

SVG = "{http://www.w3.org/2000/svg}"
TOKENS = ["[CLS]", "The", " keys", " <b>&", "\x07", " to", " are"]
VALUES = [9.0, 0.5, 2.0, -1.0, 0.0, 1.0, 0.001]
LINES = [Line("AttnLRP", VALUES, "target"), Line("Random", VALUES[::-1])]


def figure(path):
    evidence, special = [token == " keys" for token in TOKENS], [token == "[CLS]" for token in TOKENS]
    shown = data(TOKENS, LINES, evidence, special, task="sva", model="gpt2", position=6)
    saved(plotted([shown], "sva, gpt2."), path)
    return path.read_text(encoding="utf-8")


def test_every_method_has_a_row_of_the_same_tokens_with_their_colours_and_evidence_is_underlined(tmp_path):
    drawn = figure(tmp_path / "one.svg")
    words = [node.text for node in ET.fromstring(drawn).iter(f"{SVG}text")]
    tokens = [visible(token) for token in TOKENS]
    assert words == ["sva, gpt2.", "AttnLRP", *tokens, "Random", *tokens]
    fills = re.findall(r"fill: (#[0-9a-f]{6})", drawn)
    for share in (0.25, 1.0, -0.5, 0.5):
        assert fills.count(colour(share)) >= 1, "special tokens set no scale"
    assert drawn.count("stroke: #1d2327; stroke-width: 1.2") == 2
    assert drawn == figure(tmp_path / "again.svg"), "equal samples give equal bytes"


@pytest.mark.parametrize("tokens", [TOKENS, [f" word{at}" for at in range(60)]])
def test_tokens_do_not_overlap_and_wrap_at_the_edge(tokens):
    starts, lines = line_starts(tokens, 40)
    ends = [(line, start + letters_of(visible(token))) for token, (line, start) in zip(tokens, starts, strict=True)]
    assert all(end <= 40 for _, end in ends)
    for (line, end), (next_line, start) in zip(ends, starts[1:], strict=False):
        assert next_line > line or start >= end
    assert all(0 <= second[0] - first[0] <= 1 for first, second in pairwise(starts))
    assert starts[-1][0] == lines - 1
