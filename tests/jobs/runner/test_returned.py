"""Results of computations are checked where they are committed; what a method explained counts as explained."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from closelook.evaluation.schema import KNOCKOUTS
from closelook.jobs.products.explaining import Explainer
from closelook.jobs.products.record import Made, Product, Reject
from closelook.jobs.products.relevance import RELEVANCE
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.runner.worker import Unfit, checked
from closelook.jobs.store import Ledger
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

SAMPLES = ("a", "b", "c")
BROUGHT = Product("brought", "brought", "attribute", nodes=lambda run: ())


def row(sample, *numbers):
    return {"sample_id": sample, "explanation": "target", "ranking": "r", "removed": [0], "explained": list(numbers)}


def table(*rows):
    return pa.Table.from_pylist(list(rows), schema=KNOCKOUTS)


@pytest.fixture
def brought(monkeypatch):
    """A product that a package brings."""
    monkeypatch.setitem(PRODUCTS._records, "brought", BROUGHT)
    monkeypatch.setitem(PRODUCTS._owners, "brought", "their-package")
    return BROUGHT


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "product relevance must return Made with a pyarrow.Table as `table`, not NoneType"),
        (Made([1, 2]), "product relevance must return Made with a pyarrow.Table as `table`, not list"),
        (Made(table(row("a", 1.0), row("x", 1.0))), "there are rows of sample x, which is not in this unit"),
        (Made(table(), (Reject("y", "r", "d"),)), "there are rejects of sample y, which is not in this unit"),
        (Made(table(row("b", 1.0)), (Reject("b", "r", "d"),)), "there are both rows and a reject of sample b"),
    ],
)
def test_a_result_that_is_not_of_the_unit_is_refused_and_names_the_sample(made, says):
    with pytest.raises(Unfit, match=says):
        checked(RELEVANCE, made, SAMPLES)


def test_rows_of_other_things_than_samples_are_taken_as_they_are():
    made = Made(pa.table({"layer": [1]}))
    assert checked(RELEVANCE, made, SAMPLES) is made
    assert checked(RELEVANCE, Made(table(row("x", 1.0))), ()).table.num_rows == 1


def test_a_computation_that_gives_rows_of_another_sample_fails_its_cell_alone(tmp_path, model, inline, monkeypatch):
    whole = Explainer.batch

    def renaming(explainer, rows):
        explained = whole(explainer, rows)
        if explainer.requests[0].method == "random":
            renamed = tuple({**sample, "sample_id": f"{sample['sample_id']}-other"} for sample in explained.rows)
            explained = replace(explained, rows=renamed)
        return explained

    monkeypatch.setattr(Explainer, "batch", renaming)
    config = config_of(tmp_path / "root", model, methods=["gradient_x_input", "random"])
    store = prepared(config, rows_of(24))
    summary, ledger = attribute(config, store), Ledger(store)
    assert [record["artifact"]["method"] for _, record in ledger.records("relevance")] == ["gradient_x_input"]
    [failure] = [line for line in summary.failures if "failed on" in line]
    assert "random failed on relevance sva/float32: there are rows of sample s0" in failure


def test_what_one_method_explains_and_another_rejects_counts_as_explained(tmp_path, model, inline):
    """Samples without a foil are rejects of a method that explains contrasts alone, and of no other."""
    rows = [sample | ({"foil_id": None} if at % 3 == 0 else {}) for at, sample in enumerate(rows_of(24))]
    methods = ["gradient_x_input", "random"]
    config = config_of(tmp_path / "root", model, methods=methods, explanations=["contrastive"])
    store = prepared(config, rows)
    assert attribute(config, store).complete
    explained = {record["artifact"]["method"]: record["explained"] for _, record in Ledger(store).records("relevance")}
    assert explained == {"gradient_x_input": 16, "random": 24}
    logs = b"".join(map(store.read_bytes, store.files("logs", ".jsonl", recursive=True)))
    units = [line for line in map(json.loads, logs.splitlines()) if line["event"] == "unit"]
    assert sum(line["rejects"] for line in units) == 0, "random explains them all"
    for method, count in explained.items():
        assert sum(line["explained"][method] for line in units) == count
