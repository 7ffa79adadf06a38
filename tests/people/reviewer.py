"""A reviewer of the papers checks what a run claims: sources, a score by hand, tests of differences, repeatability."""

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd

import closelook

ORDINARY, RUN = ["closelook"], shlex.split(os.environ.get("CLOSELOOK", "closelook"))
assert "site-packages" in closelook.__file__
print("closelook comes from the wheel")


def say(*arguments, program=ORDINARY, code=0):
    """The output of a command, which must end with this exit code."""
    done = subprocess.run([*program, *map(str, arguments)], text=True, capture_output=True)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


# Where a method is from, and what each paper's run would be
assert "source: Close Look 3.2 and C.1; AttnLRP 3.3" in say("methods", "attnlrp")
for paper in ("paper", "attnlrp", "normxlogit"):
    assert f"name: {paper}" in say("config", "--config", paper)

# A run, twice, and elsewhere again
for root in ("first", "first", "second"):
    printed = say("run", "--config", "smoke", "--root", root, program=RUN)
    assert "report: " in printed, printed
first, second = closelook.load("first"), closelook.load("second")
columns = ["sample_id", "method", "explanation", "embedding"]
tables = [run.relevance().sort_values(columns, ignore_index=True) for run in (first, second)]
for values, other in zip(*(table["relevance"] for table in tables), strict=True):
    assert np.array_equal(values, other), "the same run gives the same bits"

# The pointing game by hand, from what the root stores
scores = first.scores()
scores = scores[(scores["metric"] == "pg") & (scores["tokens"] == "all")]
table = tables[0]
checked = 0
for row in scores.itertuples():
    explained = table[(table["method"] == row.method) & (table["explanation"] == row.explanation)]
    explained = explained[
        (explained["embedding"] == row.embedding) & (explained["logit_target"] > explained["logit_foil"])
    ]
    hits = []
    for sample in explained.itertuples():
        ordinary = np.where(sample.special_mask, -np.inf, sample.relevance)
        hits.append(sample.evidence_mask[int(np.argmax(ordinary))])
    if hits and row.method != "random":
        assert row.n == len(hits), row
        assert abs(row.value - np.mean(hits)) < 1e-6 or abs(row.value - 100 * np.mean(hits)) < 1e-4, row
        checked += 1
assert checked >= 2, "scores were recomputed"

# Conclusions are tests: intervals, p after Holm, groups
differences = first.differences()
assert {"low", "high", "p"} <= set(differences.columns)
assert {"method", "group"} <= set(first.groups().columns) or len(first.groups())
page = Path("first/report/index.html").read_text()
assert "95" in page

# The rows that other software reads are the run's
say("export", "--root", "first", "--relevance", "rows.parquet")
tokens = pd.read_parquet("rows.tokens.parquet")
exported = tokens.groupby(["id", "method", "explanation", "embedding"])["relevance"].sum()
stored = table.set_index(columns)["relevance"].map(np.sum)
both = pd.concat([exported, stored.rename_axis(exported.index.names)], axis=1, keys=["exported", "stored"]).dropna()
assert len(both) == len(stored) == len(exported)
assert np.allclose(both["exported"], both["stored"], atol=1e-4)
