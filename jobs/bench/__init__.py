"""Benchmarks: `closelook bench NAME` runs the module of that name; each says what it measures and what is promised.

* `harness` has what they share; `storage` keeps results as Parquet; `page` writes docs/performance.md from `results`.
* `lrp`: `table_8`, `work` and `samples` are its parts; `configured` puts it on a config's models;
  `peer` times lxt, whose own interpreter runs `lxt_peer`.
* `alti` has `alti_baselines`, `job` has `simulation`; `prune`, `heads`, `metrics` and `prepare` stand alone.
* `context` changes the length of the text; `context_ways` are what it times, `growth` fits curves.
* `corpus` asks whether a longer corpus costs the driver more memory.
* `store` counts the requests of `matrix`, the paper's cells without computation, on an `object_store` of its own;
  `plan` times planning there, and measures its memory.
"""

BENCHES = (
    "lrp", "alti", "job", "prepare", "prune", "metrics", "perturb", "heads", "context", "corpus", "store", "plan"
)  # fmt: skip
