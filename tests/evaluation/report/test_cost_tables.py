"""Table 8 shows what was measured, the newest of each model and device, beside the published numbers."""

from closelook.evaluation.report.sections.costs import explicit_against_modified
from closelook.jobs.methods import METHODS
from tests.shown import in_words


def number(model="gpt2", method="attnlrp", value=1.0, measure="backward_ms", **changes):
    columns = {"bench": "lrp", "device": "cpu", "part": "table_8", "model": model, "dtype": "float32", "method": method}
    return {**columns, "measure": measure, "value": value, **changes}


def ours(*numbers):
    [table] = explicit_against_modified(numbers, METHODS)
    texts = [[in_words(c, column) for c, column in zip(row.cells, table.columns, strict=True)] for row in table.rows]
    return {row.labels: text for row, text in zip(table.rows, texts, strict=True) if row.section == "ours"}, table


def test_a_model_has_its_medians_and_the_measured_speedup():
    rows, table = ours(
        number(method="gradient_x_input", value=4.0),
        number(value=5.0),
        number(method="attnlrp_explicit", value=9.0),
        number(method="attnlrp_explicit", value=1.85, measure="speedup"),
        number(method="lrp", value=3.0),
        number(value=7.0, measure="forward_ms"),
        number(value=8.0, part="memory"),
    )
    assert rows == {("gpt2", "cpu"): ["4.0", "9.0", "5.0", "1.85×"]}
    assert {row.section for row in table.rows} == {"ours", "Close Look"}


def test_the_last_of_a_model_and_device_counts():
    rows, _ = ours(number(value=5.0), number(value=2.0), number(value=3.0, device="gpu"))
    assert {labels: text[2] for labels, text in rows.items()} == {("gpt2", "cpu"): "2.0", ("gpt2", "gpu"): "3.0"}


def test_other_precisions_are_named_and_what_was_not_measured_is_a_dash():
    rows, _ = ours(number(dtype="bfloat16"))
    assert rows == {("gpt2, bfloat16", "cpu"): ["–", "–", "1.0", "–"]}


def test_without_measurements_there_is_no_table():
    assert explicit_against_modified([], METHODS) == []
    assert explicit_against_modified([number(part="memory")], METHODS) == []
