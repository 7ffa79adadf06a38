"""Benchmarks of the software: `closelook bench NAME` runs the module of that name, whose docstring says what it
measures.

* `harness` has their options, timing and tables; `page` writes docs/performance.md from `results` and from those that
  ship with `jobs.bench`; `gpu` is `make gpu`.
* `parts` has the models, samples, stores and baselines that they measure.
"""

BENCHES = (
    "lrp", "alti", "job", "prepare", "prune", "metrics", "perturb", "heads", "context", "answers",
    "corpus", "store", "plan", "peers", "chaos",
)  # fmt: skip
