"""The distributed job: what a run is made of, where it is kept, how Ray computes it, and the command line.

* `__main__` is the command line; `run` runs the stages `prepare`, `attribute`, `evaluate`, `prune`, `bench`,
  `report` in order.
* `config` and `configfile` read `conf/*.yaml`; `methods`, `models` and `geometries` say what can be computed on what.
* `plan` decides which cells are wanted and which are done; `store`, `lock` and `manifests` keep them.
* `pools` sizes Ray's actor pools; `workers` is what runs inside them.
* `commands` look at a store without computing; `pages` feed the report.
* `bench` measures; `deploy` has the manifests for Kubernetes.
"""
