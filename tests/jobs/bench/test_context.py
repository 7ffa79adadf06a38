import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import context
from benchmarks.context import crossings
from benchmarks.parts.context_variants import CHECKPOINT, FORWARD, PERTURBATION, TimedVariant
from benchmarks.parts.harness import exponent_of
from closelook.jobs.bench.storage import numbers
from closelook.lrp_core.records.types import UserError

WAYS = {FORWARD, "attnlrp", CHECKPOINT, "grad_attention_rollout", "integrated_gradients", PERTURBATION}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    file = tmp_path_factory.mktemp("context") / "context.json"
    ours = context.main(["--quick", "--lengths", "16,32,48", "--json", str(file)])
    assert json.loads(file.read_text()) == json.loads(json.dumps(ours))
    return ours


def rows(result, part):
    return [row for row in result["rows"] if row["part"] == part]


def test_every_way_has_seconds_bytes_and_a_price_at_every_length(result):
    curve = rows(result, "curve")
    measured = {(row["geometry"], row["length"], row["method"]) for row in curve}
    geometries = {row["geometry"] for row in curve}
    assert geometries == {"gpt2", "Llama-3.2-1B, 1 of 2 layers"}
    assert measured == {(name, length, way) for name in geometries for length in (16, 32, 48) for way in WAYS}
    for row in curve:
        seconds = row["wall_s"]["median"]
        assert row["cost_usd"] == pytest.approx(seconds / 3600 * 0.130 * 0.16)
        assert row["peak_bytes"] > 0
        assert row["extrapolated"] == (row["method"] in ("integrated_gradients", PERTURBATION))
    peaks = {row["method"]: row["peak_bytes"] for row in curve if (row["geometry"], row["length"]) == ("gpt2", 48)}
    assert peaks[PERTURBATION] <= 1.2 * peaks[FORWARD] < peaks[CHECKPOINT] < peaks["attnlrp"]


def test_what_is_told_from_a_part_stands_beside_the_whole(result):
    assert {row["method"] for row in rows(result, "told from a part / whole")} == {"integrated_gradients", PERTURBATION}
    assert all(row["length"] == 16 for row in rows(result, "told from a part / whole"))


def test_exponents_stand_beside_table_2(result):
    tokens = {(row["geometry"], row["method"]): row for row in rows(result, "exponents in tokens")}
    assert tokens["gpt2", PERTURBATION]["table_2_of_forward_exponent"] == 1.0
    assert tokens["gpt2", CHECKPOINT]["table_2_of_forward_exponent"] == 0.0
    assert all(0.5 < row["bytes_exponent"] < 2.5 for row in tokens.values())


@pytest.mark.nightly
def test_memory_is_counted_over_layers_where_there_are_some(monkeypatch):
    for part in ("curves", "note_growth", "kernels", "checkpointing"):
        monkeypatch.setattr(context, part, lambda *_: ({}, {}))
    bench = context.main(["--geometry", "gpt2", "--layers", "4", "--lengths", "8"])
    (of_checkpoint, of_perturbation) = rows(bench, "exponents in layers")
    assert (of_checkpoint["method"], of_perturbation["method"]) == (CHECKPOINT, PERTURBATION)
    assert of_perturbation["of_forward_exponent"] == pytest.approx(0, abs=0.1)
    assert {row["layers"] for row in rows(bench, "memory by layers")} == {1, 2, 4}


def test_attnlrp_and_checkpointing_have_their_targets(result):
    targets = {name: (ratio["target"], ratio["better"]) for name, ratio in result["ratios"].items()}
    for kernel in ("sdpa", "eager"):
        assert targets[f"gpt2: T=48: attnlrp, seconds / forward and backward, {kernel}"] == (1.1, "lower")
    assert targets["gpt2-medium: T=48: checkpointing, seconds / without"] == (1.5, "lower")
    assert targets["gpt2-medium: T=48: checkpointing, peak bytes / without"] == (0.25, "lower")
    assert all(math.isfinite(ratio["value"]) for ratio in result["ratios"].values())


def test_results_fit_the_schema_of_the_store(result):
    ours = list(numbers(result))
    assert {row["measure"] for row in ours if row["part"] == "curve"} == {"wall_s", "peak_bytes", "cost_usd"}
    assert {row["unit"] for row in ours if row["measure"] == "cost_usd"} == {"USD"}


def test_what_memory_does_not_hold_is_left_out_and_said(monkeypatch, capsys):
    real = context.variants_of

    def full_memory(view, batch, full=False):
        def run():
            raise MemoryError

        result = real(view, batch, full)
        if batch.input_ids.shape[1] > 16:
            result[PERTURBATION] = TimedVariant(run)
        return result

    monkeypatch.setattr(context, "variants_of", full_memory)
    result = context.main(["--quick", "--geometry", "gpt2", "--lengths", "8,16,24", "--repeats", "1"])
    (lost,) = [row for row in rows(result, "curve") if "state" in row]
    assert (lost["method"], lost["length"], lost["state"]) == (PERTURBATION, 24, "out of memory")
    assert "out of memory" in capsys.readouterr().out
    assert {row["method"] for row in rows(result, "exponents in tokens")} == WAYS


def test_an_exponent_is_found_and_curves_cross_where_they_do():
    tokens = [32.0, 64.0, 128.0]
    square, line = {x: 2e-4 * x**2 for x in tokens}, {x: 0.016 * x for x in tokens}
    assert exponent_of(square) == pytest.approx(2.0)
    assert crossings(square, line) == [(pytest.approx(80), True)]
    assert crossings(line, square) == [(pytest.approx(80), False)]
    assert crossings(square, {x: 3 * y for x, y in line.items()}) == [], "they cross beyond what was measured"
    assert crossings(square, {x: 2 * y for x, y in square.items()}) == []
    assert exponent_of({32.0: 1.0}) is None
    assert crossings({32.0: 1.0}, {32.0: 2.0}) == []


@given(st.lists(st.tuples(*[st.floats(1e-9, 1e9)] * 2), min_size=2, max_size=5))
def test_whatever_was_measured_a_crossing_lies_inside(measured):
    first, second = ({16.0 * (x + 1): pair[which] for x, pair in enumerate(measured)} for which in (0, 1))
    for at, _ in crossings(first, second):
        assert min(first) * (1 - 1e-9) <= at <= max(first) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "demo/vit"], "demo/vit: only models that read one text can be measured"),
        (["--model", "demo/bert", "--lengths", "4096"], "demo/bert reads at most 128 tokens: give shorter --lengths"),
        (["--model", "demo/gtp2"], "did you mean"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(arguments, message):
    with pytest.raises(UserError, match=message):
        context.main(arguments)


@pytest.mark.parametrize("lengths", ["32,32", "1,2", "many"])
def test_lengths_are_different_numbers(lengths, capsys):
    with pytest.raises(SystemExit, match="2"):
        context.main(["--lengths", lengths])
    assert "give different numbers of tokens" in capsys.readouterr().err
