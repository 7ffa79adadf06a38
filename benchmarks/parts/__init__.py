"""The models, samples, stores and baselines that benchmarks measure, by the benchmark that uses them.

* All benchmarks: `harness` has their options, interleaved timing, and tables of results.
* Many benchmarks: `samples` draws models and samples, `runs` makes small runs, `stores` has stores and their contents.
* `peers`: `peers`, which times other packages; `job`: `simulation`; `chaos`: `chaos`.
* `context` and `answers`: `context_variants`.
"""
