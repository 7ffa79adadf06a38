"""Units: every sample once, within budget, the same every time."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closelook.evaluation.schema import VIEW
from closelook.evaluation.scoring.faithfulness.flips import Flips
from closelook.jobs.plan.gather import digest_of, gather
from closelook.jobs.plan.inputs import Inputs, read_inputs
from closelook.jobs.plan.units import cut_by_tokens, cut_units
from closelook.jobs.products import curves
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.artifacts import views_of
from tests.jobs.small import rows_of


def inputs_of(rows: list[dict]) -> Inputs:
    return Inputs("t", "sva", pa.Table.from_pylist(rows, schema=VIEW))


@given(n=st.integers(1, 60), budget=st.integers(1, 80), shard_rows=st.integers(1, 20), foilless=st.integers(0, 5))
def test_units_hold_every_sample_once_within_budget(n, budget, shard_rows, foilless):
    rows = rows_of(n, seed=n)
    for row in rows[:foilless]:
        row["foil_id"] = None
    samples = inputs_of(rows)
    units = cut_units(samples, range(n), budget, shard_rows)
    assert sorted(row for unit in units for row in unit.rows) == list(range(n))
    assert len({unit.name for unit in units}) == len(units)
    for unit in units:
        assert unit.tokens == sum(rows[row]["length"] for row in unit.rows)
        for start, end in zip(unit.cuts, [*unit.cuts[1:], len(unit.rows)], strict=True):
            batch = [rows[row] for row in unit.rows[start:end]]
            assert batch
            assert len(batch) == 1 or len(batch) * max(row["length"] for row in batch) <= budget
            assert len({row["foil_id"] is None for row in batch}) == 1


def test_units_do_not_depend_on_the_order_of_the_samples():
    rows = rows_of(30)
    forward, backward = inputs_of(rows), inputs_of(rows[::-1])
    a, b = (cut_units(inputs, range(30), 64, 8) for inputs in (forward, backward))
    assert [unit.name for unit in a] == [unit.name for unit in b]


def test_the_longest_samples_come_first():
    units = cut_units(inputs_of(rows_of(30)), range(30), 64, 8)
    lengths = inputs_of(rows_of(30)).lengths
    order = [lengths[row] for unit in units for row in unit.rows]
    assert order == sorted(order, reverse=True)


def test_a_subset_is_drawn_by_content():
    rows = rows_of(30)
    forward, backward = inputs_of(rows), inputs_of(rows[::-1])
    chosen = {rows[i]["sample_id"] for i in forward.subset(10, seed=0)}
    assert chosen == {rows[::-1][i]["sample_id"] for i in backward.subset(10, seed=0)}
    assert chosen != {rows[i]["sample_id"] for i in forward.subset(10, seed=1)}
    assert len(forward.subset(None, 0)) == len(forward.subset(99, 0)) == 30


@pytest.mark.parametrize("images", [False, True])
def test_a_worker_gets_the_samples_of_its_unit_and_reads_pixels_alone(images, tmp_path, monkeypatch):
    store, views = Store(str(tmp_path)), views_of("t", "sva")
    rows = [{**row, "pixels": bytes([i]) * 4 if images else None} for i, row in enumerate(rows_of(10))]
    for name, part in {"0": rows[:4], "4": rows[4:]}.items():
        store.write_shard(f"{views.folder}/{name}.parquet", pa.Table.from_pylist(part, schema=VIEW), VIEW)
    Ledger(store).commit(views, {"shards": ["0.parquet", "4.parquet"], "rows": 10})
    selected = read_inputs(Ledger(store), "t", "sva").select([9, 1, 5])
    if not images:
        monkeypatch.setattr(Store, "read", lambda *arguments: pytest.fail("read the views again"))
    for sample, row in zip(selected.rows(store), [rows[9], rows[1], rows[5]], strict=True):
        assert [sample[name] for name in ("sample_id", "input_ids", "pixels")] == [
            row[name] for name in ("sample_id", "input_ids", "pixels")
        ]


@given(n=st.integers(1, 60), budget=st.integers(1, 80), shard_rows=st.integers(1, 20), foilless=st.integers(0, 5))
def test_units_are_those_of_taking_sample_after_sample(n, budget, shard_rows, foilless):
    rows = rows_of(n, seed=n)
    for row in rows[:foilless]:
        row["foil_id"] = None
    order = sorted(rows, key=lambda row: (row["foil_id"] is None, -row["length"], row["sample_id"]))
    batches: list[list[dict]] = []
    for row in order:
        last = batches[-1] if batches else []
        alike = last and (last[0]["foil_id"] is None) == (row["foil_id"] is None)
        if alike and (len(last) + 1) * last[0]["length"] <= budget:
            last.append(row)
        else:
            batches.append([row])
    expected: list[list[list[dict]]] = []
    for batch in batches:
        if expected and sum(map(len, expected[-1])) + len(batch) <= shard_rows:
            expected[-1].append(batch)
        else:
            expected.append([batch])
    units = cut_units(inputs_of(rows), range(n), budget, shard_rows)
    assert [[rows[i]["sample_id"] for i in unit.rows] for unit in units] == [
        [row["sample_id"] for batch in unit for row in batch] for unit in expected
    ]
    assert [len(unit.cuts) for unit in units] == [len(unit) for unit in expected]


@given(n=st.integers(0, 40), most=st.integers(1, 200), first=st.integers(0, 10))
def test_units_by_tokens_are_filled_with_the_longest_samples_first(n, most, first):
    rows = rows_of(n + first, seed=n)
    costs = np.array([3 * row["length"] for row in rows])
    expected: list[list[int]] = []
    for row in sorted(range(first, n + first), key=lambda at: (-rows[at]["length"], rows[at]["sample_id"])):
        if expected and costs[[*expected[-1], row]].sum() <= most:
            expected[-1].append(row)
        else:
            expected.append([row])
    units = cut_by_tokens(inputs_of(rows), range(first, n + first), costs, most)
    assert [unit.rows.tolist() for unit in units] == expected
    assert [unit.tokens for unit in units] == [costs[of_unit].sum() for of_unit in expected]
    assert {unit.cuts for unit in units} <= {(0,)}


def test_a_sample_whose_tokens_may_be_removed_is_looked_for_among_some_at_a_time(monkeypatch):
    """Rows of millions of samples do not fit into the driver's memory as Python objects."""
    asked = []
    monkeypatch.setattr(curves, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(curves, "gather", lambda table, rows: asked.append(len(rows)) or gather(table, rows))
    model = SimpleNamespace(name="m", resolved=SimpleNamespace(kind=SimpleNamespace(slot=False)))
    curves.check_flippable([Flips("zero", 10, True, 0)], model, inputs_of(rows_of(30)), np.arange(30))
    assert asked == [4]


def test_a_digest_is_of_the_rows_whichever_files_and_parts_they_come_in():
    table = pa.Table.from_pylist(rows_of(30), schema=VIEW)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None).combine_chunks())
    whole = digest_of(table)
    assert whole == hashlib.sha256(sink.getvalue()).hexdigest()
    assert whole == digest_of(pa.concat_tables([table.slice(0, 7), table.slice(7)]))
    parts = digest_of(table, 8)
    assert parts == digest_of(pa.concat_tables([table.slice(0, 7), table.slice(7)]), 8)
    assert parts != digest_of(table.slice(1))


@given(rows=st.lists(st.integers(0, 29), max_size=40))
def test_rows_are_gathered_from_chunks_in_their_order(rows):
    table = pa.Table.from_pylist(rows_of(30), schema=VIEW).select(["sample_id", "input_ids", "scope_mask"])
    chunks = pa.concat_tables([table.slice(0, 11), table.slice(11, 1), table.slice(12)])
    result = gather(chunks, np.array(rows, np.int64))
    assert result.to_pylist() == [table.slice(row, 1).to_pylist()[0] for row in rows]


def test_all_samples_in_another_order_are_cut_alike():
    samples = inputs_of(rows_of(30))
    a, b = (cut_units(samples, rows, 64, 8) for rows in (range(30), range(29, -1, -1)))
    assert [list(unit.rows) for unit in a] == [list(unit.rows) for unit in b]
