"""Batches of sorted prompts that read a common beginning once, compared with every other cut into batches."""

from itertools import chain, combinations

import numpy as np
import pytest

from closelook.lrp_core.interventions.prefixes import readings
from tests.oracles.sources import every_mask

ANSWER, FORWARD = 5, 64  # tokens; a forward is worth so many on a CPU


def prompts_of(masks, length):
    """Sorted prompts without the units that each mask [n] leaves out, and a question."""
    units = [[10 * unit + at for at in range(length)] for unit in range(len(masks[0]))]
    return sorted({(*chain(*(unit for unit, stays in zip(units, mask, strict=True) if stays)), 999) for mask in masks})


def alike(first, other):
    return next(
        (at for at, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(map(len, (first, other)))
    )


def cost(prompts, start, end):
    """Tokens of a batch, padding included, and of its forwards: with what its rows share read apart, or not."""
    rows = prompts[start:end]
    shared = min(alike(row, other) for row in rows for other in rows)
    shared = min(shared, min(map(len, rows)) - 1)
    known = min(shared, alike(prompts[start - 1], rows[0])) if start else 0
    read = [len(rows) * (max(map(len, rows)) + ANSWER - 1 - prefix) for prefix in (known, shared)]
    return FORWARD + min(read[0], read[1] + shared - known + FORWARD)


def cuts(count):
    for size in range(count):
        for inner in combinations(range(1, count), size):
            yield list(zip((0, *inner), (*inner, count), strict=True))


@pytest.mark.parametrize(("length", "seed"), [(3, 0), (17, 1), (40, 2), (90, 3)])
def test_no_other_cut_of_the_prompts_reads_fewer_tokens(length, seed):
    masks = np.random.default_rng(seed).permutation(every_mask(6))[:10]
    prompts = prompts_of(masks, length)
    chosen = readings(prompts, ANSWER, 10**6, "cpu")
    least = min(sum(cost(prompts, *batch) for batch in cut) for cut in cuts(len(prompts)))
    assert sum(reading.tokens for reading in chosen) == least
    assert [reading.tokens for reading in chosen] == [cost(prompts, reading.start, reading.end) for reading in chosen]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_hold_all_prompts_in_turn_and_fit_the_budget(device):
    prompts = prompts_of(every_mask(7), 5)
    chosen = readings(prompts, ANSWER, 120, device)
    assert [row for reading in chosen for row in range(reading.start, reading.end)] == list(range(len(prompts)))
    for reading in chosen:
        rows = prompts[reading.start : reading.end]
        assert len(rows) == 1 or len(rows) * (max(map(len, rows)) + ANSWER) <= 120 + len(rows)
        assert len({row[: reading.shared] for row in rows}) == 1
        assert reading.shared < min(map(len, rows)), "the answer is read from a token of the row"
        if reading.start:
            assert prompts[reading.start - 1][: reading.known] == rows[0][: reading.known]
        else:
            assert reading.known == 0


def test_a_device_whose_forwards_begin_slowly_reads_more_rows_together():
    prompts = prompts_of(every_mask(7), 20)
    batches = {device: len(readings(prompts, ANSWER, 10**6, device)) for device in ("cpu", "cuda")}
    assert batches["cuda"] < batches["cpu"] < len(prompts)
