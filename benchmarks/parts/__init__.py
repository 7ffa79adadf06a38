"""The models, samples, stores and baselines that benchmarks measure, by the benchmark that uses them.

* All benchmarks: `harness` has their options, interleaved timing, and tables of results.
* Many benchmarks: `samples` draws models and samples, `stores` has stores and their contents, and `work` counts
  operations and bytes.
* `lrp`: `composites`, `configured` (table 8 for the models of a config) and `peers`, which time other packages.
* `alti`: `alti_baselines`; `heads`: `heads_baselines`; `perturb`: `many_forwards`.
* `context`: `context_variants` and `growth`, which fits curves; `job`: `simulation`.
"""
