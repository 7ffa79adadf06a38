"""Benchmarks of the software: `closelook bench NAME` runs the module NAME, whose docstring says what it measures.

* `harness` has the options, timing and tables of all benchmarks. `page` writes docs/performance.md from the result
  files in `results` and in `jobs.bench`. `gpu` is `make gpu`.
* `parts` has the models, samples, stores and baselines of the benchmarks.
"""

BENCHES = (
    "lrp", "alti", "job", "prepare", "prune", "metrics", "perturb", "heads", "context", "answers",
    "corpus", "store", "plan", "peers", "chaos",
)  # fmt: skip
