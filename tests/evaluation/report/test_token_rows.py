"""One sample and what every method says of its tokens: the picture and its numbers."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from closelook.evaluation.report.frame import numbers
from closelook.evaluation.report.heatmaps.one_sample import LABEL, WIDE, token_rows, token_table
from closelook.evaluation.report.heatmaps.tokens import Line, colour, data

SVG = "{http://www.w3.org/2000/svg}"
TOKENS = ["[CLS]", "The", " keys", " <b>&", "\x07", " 鍵", " to", " are"]
VALUES = [9.0, 0.5, 2.0, -1.0, 0.0, 0.001, 1.0, 0.1]
LINES = [Line("AttnLRP", VALUES, "target"), Line("Random", VALUES[::-1])]
EVIDENCE = [token == " keys" for token in TOKENS]
SPECIAL = [token == "[CLS]" for token in TOKENS]


@pytest.fixture
def entry():
    return data(TOKENS, LINES, EVIDENCE, SPECIAL, task="sva", model="gpt2", position=7)


def words(svg):
    """(text, x, y, class) of every token, and the methods' names apart."""
    texts = [
        (node.text, float(node.get("x")), float(node.get("y")), node.get("class")) for node in svg.iter(f"{SVG}text")
    ]
    return [node for node in texts if node[3] != "m"], [node[0] for node in texts if node[3] == "m"]


def test_every_method_has_a_row_of_the_same_tokens_with_their_colours_and_marks(entry):
    svg = ET.fromstring(token_rows(entry, "sva", "why").svg)
    tokens, methods = words(svg)
    assert methods == ["AttnLRP", "Random"]
    assert [text for text, *_ in tokens] == ["[CLS]", "The", "keys", "<b>&", "�", "鍵", "to", "are"] * 2
    assert [at for at, token in enumerate(tokens[:8]) if token[3] == "s"] == [0]
    fills = [rect.get("fill") for rect in svg.iter(f"{SVG}rect") if rect.get("fill") != "none"]
    assert fills[:5] == [colour(share) for share in (0.25, 1.0, -0.5, 0.5, 0.05)], "special tokens set no scale"
    assert len(list(svg.iter(f"{SVG}path"))) == 2, "evidence is underlined in each row"


def test_tokens_do_not_overlap_and_wrap_at_the_edge_of_the_picture(entry):
    long = data([f" word{at}" for at in range(60)], [Line("LRP", [1.0] * 60)], task="sva", model="gpt2", position=59)
    for made in (token_rows(entry, "", ""), token_rows(long, "", "")):
        tree = ET.fromstring(made.svg)
        boxes = [
            (float(n.get("y")), float(n.get("x")), float(n.get("textLength")))
            for n in tree.iter(f"{SVG}text")
            if n.get("class") != "m"
        ]
        assert max(x + length for _, x, length in boxes) <= WIDE
        for (y, x, length), (below, right, _) in pairwise(boxes):
            assert below > y or right >= x + length - 0.1
        assert max(y for y, *_ in boxes) < float(tree.get("height"))
    assert min(x for _, x, _, _ in words(ET.fromstring(made.svg))[0]) >= LABEL


def test_the_numbers_of_the_picture_are_a_table(entry):
    table = token_table(entry, "One sample", "why")
    assert [cell.value for cell in table.rows[0].cells] == VALUES
    assert [row.labels for row in table.rows] == [("gpt2", "AttnLRP"), ("gpt2", "Random")]
    values = {row["id"]: row["value"] for row in numbers([table], {})}
    assert values["one_sample/sva/gpt2/AttnLRP//keys/2"] == 2.0
