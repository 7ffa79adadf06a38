"""Benchmarks of the software: `closelook bench NAME` runs the module NAME, whose docstring says what it measures.

`harness` has their options, timing and tables; `models` draws models and samples. `page` writes the tables of
docs/performance.md from the result files in `results`. `gpu` is `make gpu`.
"""

BENCHES = ("lrp", "alti", "job", "answers", "peers")
