"""Models, samples, stores and baselines that benchmarks measure.

* `samples` draws models and samples, `views` writes made-up views to a store; `work` counts operations and bytes.
* `lrp`: `composites`, `configured` (table 8 on a config's models) and `peer`, which times lxt in `lxt_peer`.
* `alti` has `alti_baselines`, `heads` has `heads_baselines`, `perturb` has `many_forwards`.
* `context` has `context_variants` and `growth`, which fits curves; `job` has `simulation` and `slow_store`.
* `store` and `plan` take the cells of `matrix`, on an `object_store` that counts requests.
"""
