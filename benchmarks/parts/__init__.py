"""The models, samples, stores and baselines that benchmarks measure, by the benchmark that uses them.

* Many benchmarks: `samples` draws models and samples, `views` writes made-up views to a store, and `work` counts
  operations and bytes.
* `lrp`: `composites`, `configured` (table 8 for the models of a config) and `peer`, which times lxt in `lxt_peer`.
* `alti`: `alti_baselines`; `heads`: `heads_baselines`; `perturb`: `many_forwards`.
* `context`: `context_variants` and `growth`, which fits curves; `job`: `simulation` and `slow_store`.
* `store` and `plan`: the cells of `matrix`, on an `object_store` that counts requests.
"""
