"""Benchmarks: `closelook bench NAME` runs the module of that name; each says what it measures and what is promised.

* `harness` is their engine; `samples` draws models and samples, `views` writes made-up views to a store;
  `storage` keeps results as Parquet; `page` writes docs/performance.md from `results`.
* `lrp`: `table_8`, `work` and `composites` are its parts; `configured` puts it on a config's models;
  `peer` times lxt, whose own interpreter runs `lxt_peer`.
* `alti` has `alti_baselines`, `heads` has `heads_ways`, `perturb` has `many_forwards`, `job` has `simulation` and
  `slow_store`; `prune`, `metrics` and `prepare` stand alone.
* `context` changes the length of the text; `context_ways` has the computations that it times, `growth` fits curves.
* `corpus` asks whether a longer corpus costs the driver more memory.
* `store` counts the requests of `matrix`, the paper's cells without computation, on an `object_store` of its own;
  `plan` times planning there, and measures its memory.
"""

BENCHES = (
    "lrp", "alti", "job", "prepare", "prune", "metrics", "perturb", "heads", "context", "corpus", "store", "plan"
)  # fmt: skip
