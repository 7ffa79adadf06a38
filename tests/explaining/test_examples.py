"""`closelook examples`: as docs/neurons.md shows it, and what it says of bad input."""

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "neurons.md"


def test_five_neurons_answer_to_what_their_page_says(closelook, shared, tmp_path, monkeypatch):
    """The commands as they stand there, in a folder beside which lies the folder with the model."""
    page = PAGE.read_text()
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "shared").symlink_to(shared.resolve())
    monkeypatch.chdir(clone)
    (stories,) = re.findall(r"^```text stories.txt\n(.*?)^```", page, re.S | re.M)
    Path("stories.txt").write_text(stories)
    shown = re.findall(r"^closelook (examples [^\n]*)\n```\n\n```text\n(.*?)\n```", page, re.M | re.S)
    shown = [(command, expected.splitlines()) for command, expected in shown]
    assert len(shown) == 5
    for command, expected in shown:
        code, out, _ = closelook(*shlex.split(command))
        assert code == 0
        assert [line.rstrip() for line in out.splitlines()[1 : len(expected) + 1]] == expected


def test_broken_lines_are_counted_and_bad_input_is_one_line(closelook, model, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(b"w5 w7\n\n\xff\xfe\nw9 w4 w8\nw1\x00w2\n")
    asked = ("--model", str(model), "--corpus", str(corpus), "--top", "2")
    code, out, _ = closelook("examples", "0.3", *asked)
    assert code == 0
    assert "2 lines hold no text; the first of them is corpus.txt:3: not UTF-8" in out
    assert "in 2 lines of corpus.txt" in out
    for neuron, message in (
        (
            "0",
            "the name of a neuron must be LAYER.NEURON, as 2.17 (LAYER.EXPERT.NEURON in a mixture of experts), not '0'",
        ),
        ("7.0", "there is no layer 7: the model's"),
    ):
        code, _, err = closelook("examples", neuron, *asked)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
    corpus.write_text("\n")
    assert "holds no text" in closelook("examples", "0.3", *asked)[2]
    assert "Missing option '--corpus'" in closelook("examples", "0.3", *asked[:2])[2]
    assert "no model is given to read the corpus" in closelook("examples", "0.3", *asked[2:])[2]
    of_images = closelook("examples", "0.3", "--model", "demo/vit", *asked[2:])[2]
    assert of_images == "error: demo/vit reads images: `closelook examples` reads texts\n"
