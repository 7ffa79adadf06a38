"""Benchmarks of the software: `closelook bench NAME` runs the module NAME, whose docstring says what it measures.

* `page` writes docs/performance.md from the result files in `results` and in `jobs.bench`. `gpu` is `make gpu`.
* `parts` has the models, samples, stores and baselines of the benchmarks; its `harness` has their options, timing and
  tables.
"""

BENCHES = (
    "lrp", "alti", "job", "prepare", "prune", "metrics", "perturb", "heads", "context", "answers",
    "corpus", "store", "plan", "peers", "chaos",
)  # fmt: skip
