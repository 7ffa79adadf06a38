"""`closelook methods` and `closelook models` say what the records hold, without torch."""

import csv
import re
import subprocess
import sys

import pytest

from closelook.jobs.commands.listings.sums import FILE
from closelook.jobs.methods import METHODS
from closelook.lrp_core import Method, Option
from closelook.lrp_core.families import FAMILIES
from closelook.lrp_core.records.capabilities import POST_NORM
from closelook.lrp_core.records.kinds import KINDS
from closelook.lrp_core.records.registry import Registry
from tests.jobs.small import REPOSITORY
from tests.sums import measured

EXTRA = Method(
    "extra",
    version=4,
    label="Extra",
    explain="nowhere:nothing",
    family="representation",
    options=(Option("power", 2.5, "what it is raised to", low=1, needs={3.0: POST_NORM}),),
    needs=(POST_NORM,),
    conserves=False,
    forwards=lambda values, tokens: values["power"] * tokens,
    instead="random",
    about="one more",
    source="Nobody 2030",
)


@pytest.fixture
def extended(monkeypatch):
    table = Registry("method", *METHODS.values(), group="closelook.none", record_class=Method)
    table.register(EXTRA, by="their-package")
    for module in ("closelook.methods", "closelook.jobs.commands.listings.records"):
        monkeypatch.setattr(f"{module}.METHODS", table)


def test_every_method_is_a_row_with_what_it_needs_and_costs(closelook, extended):
    code, out, _ = closelook("methods")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert set(METHODS) <= set(rows)
    assert rows["extra"] == ["representation", "post_norm", "75"]
    assert max(map(len, out.splitlines())) <= 120


def test_a_method_in_full_shows_options_with_defaults_bounds_and_help(closelook, extended):
    code, out, _ = closelook("methods", "extra")
    assert code == 0
    for line in (
        "extra: Extra, version 4, brought by their-package",
        "  about: one more",
        "  needs: blocks that normalise after the sum (post-norm)",
        "  instead: random, where a model lacks that",
        "  sums to: nothing: its relevance is no share of the explained number",
        "  cost: 75 forwards of a sample of 30 tokens",
        "  source: Nobody 2030",
        "  option power: a number at least 1, by default 2.5",
        "    what it is raised to",
        "    3.0 needs blocks that normalise after the sum (post-norm)",
        "  in a config: methods: [extra: {power: 2.5}]",
    ):
        assert line in out.splitlines()
    code, _, err = closelook("methods", "extr")
    assert (code, err) == (2, "error: unknown method 'extr' (did you mean 'extra'?)\n")


@pytest.mark.parametrize("name", METHODS)
def test_every_record_says_what_the_method_is_and_what_it_knows(closelook, name):
    code, out, _ = closelook("methods", name)
    assert code == 0
    facts = {line.split(":")[0].strip() for line in out.splitlines()}
    assert {"about", "family", "needs", "gives", "explanations", "sums to", "cost"} <= facts
    assert {f"option {option.name}" for option in METHODS[name].options} <= facts


def test_methods_say_what_their_relevance_sums_to_as_it_is_measured_again(closelook):
    with FILE.open(encoding="utf-8", newline="") as lines:
        stored = {row.pop("method"): row for row in csv.DictReader(lines)}
    again = {row.pop("method"): row for row in measured()}
    assert stored.keys() == again.keys()
    for name, row in again.items():
        assert stored[name].pop("model") == row.pop("model")
        assert {key: float(value) for key, value in stored[name].items()} == pytest.approx(row, abs=1), name
    _, out, _ = closelook("methods", "gradient_x_input")
    assert "sums to the explained number" not in out, "it sums to nearly nothing"
    assert f"  sums to: {again['gradient_x_input']['as_trained']:.0f} % of the explained number on demo/gpt2" in out


def test_models_are_listed_by_kind_and_family_with_the_methods_they_lack_something_for(closelook, extended):
    code, out, _ = closelook("models")
    assert code == 0
    for kind in KINDS.values():
        assert f"{kind.name}: {kind.title}" in out
        assert f"  loaded by: {kind.auto}" in out
        assert f"  perturbations: {', '.join(kind.perturbations)}" in out
    flat = " ".join(out.split())
    for family in FAMILIES.values():
        lacking = ", ".join(m.name for m in (*METHODS.values(), EXTRA) if m.missing(family.capabilities))
        row = re.search(
            rf" {family.name} (?:(?!closelook).)*closelook (all.*?)(?= \S+ (?:masked|causal|image_|encoder_)| family:)",
            flat,
        )
        assert row is not None
        assert row[1] == (f"all but {lacking}" if lacking else "all")
    assert EXTRA.missing(FAMILIES["llama"].capabilities)
    assert not EXTRA.missing(FAMILIES["bert"].capabilities)


@pytest.mark.parametrize("arguments", ["methods", "methods lrp", "models"])
def test_listings_need_no_torch(arguments):
    code = "import sys; from closelook.jobs.__main__ import app; app(standalone_mode=False); "
    code += "sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, *arguments.split()]
    assert subprocess.run(command, cwd=REPOSITORY, check=False, stdout=subprocess.DEVNULL).returncode == 0
