"""`closelook plan`: what is missing, and its seconds by the units that the root's logs have timed."""

import json

import pytest

from closelook.jobs.commands.roots.plan import duration, rate_of, seconds_a_row, show
from closelook.jobs.store import Artifact, Store
from tests.jobs.small import config_of, prepared, rows_of


def log(store, *units):
    """A log as a run writes it; `units` are (name, rows, methods, seconds of computing)."""
    lines = [{"event": "begin", "pool": "a.b", "model": "a.b", "workers": 1, "units": len(units)}]
    for unit, rows, methods, seconds in units:
        explained = dict.fromkeys(methods, rows)
        line = {"event": "unit", "model": "a.b", "unit": unit, "rows": rows, "explained": explained}
        lines.append(line | {"error": "", "wall_s": seconds})
    lines.append(lines[-1] | {"error": "out of memory", "wall_s": 99.0})
    store.write_bytes("logs/1/00000.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def test_seconds_a_row_are_those_of_a_product_model_task_and_precision_or_of_the_others_of_the_model(tmp_path):
    store = Store(str(tmp_path))
    store.create()
    log(
        store,
        ("relevance.a.b.sva.float32.00000-x", 10, ["lrp", "random"], 2.0),
        ("relevance.a.b.sva.float32.00001-x", 10, ["lrp", "random"], 4.0),
        ("relevance.a.b.qa.float64.00000-x", 10, ["lrp"], 10.0),
        ("curves.a.b.sva.float32.00000-x", 10, ["lrp"], 30.0),
    )
    rates = seconds_a_row(store)
    assert rate_of(rates, Artifact("relevance", "a.b", "sva", "float32", "lrp")) == pytest.approx(6 / 40)
    assert rate_of(rates, Artifact("relevance", "a.b", "qa", "float32", "lrp")) == pytest.approx(16 / 50)
    assert rate_of(rates, Artifact("curves", "a.b", "sva", "float32", "lrp")) == pytest.approx(3)
    assert rate_of(rates, Artifact("relevance", "other", "sva", "float32", "lrp")) is None


def test_a_plan_counts_what_is_missing_and_knows_no_time_before_a_unit_was_timed(tmp_path, model, capsys):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, rows_of(12))
    show(config, store)
    shown = capsys.readouterr().out
    assert "3 artifacts, 3 missing, device time unknown" in shown
    assert "run a few samples first" in shown
    name = "relevance.gpt2.sva.float32.00000-x"
    line = {"event": "unit", "model": "gpt2", "unit": name, "rows": 6, "explained": {}, "error": "", "wall_s": 30.0}
    store.write_bytes("logs/1/00000.jsonl", json.dumps(line).encode())
    show(config, store)
    assert "3 artifacts, 3 missing, device time 3.0 min" in capsys.readouterr().out


def test_samples_that_are_not_prepared_are_counted_later(tmp_path, model, capsys):
    config = config_of(tmp_path / "root", model)
    show(config, Store(config.root))
    assert "gpt2: sva is counted after `closelook prepare`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([], "0.0 s"), ([100.0], "100.0 s"), ([60.0, 60.0], "2.0 min"), ([7200.0], "2.0 h"), ([1.0, None], "unknown")],
)
def test_a_duration_is_in_the_largest_unit_of_which_there_are_two(parts, expected):
    assert duration(parts) == expected
