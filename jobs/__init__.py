"""The distributed job: what a run is made of, where it is kept, how Ray computes it, and the command line.

* `__main__` is the command line; `methods` and `tasks` are the tables of records, with what installed packages bring.
* `config` reads `conf/*.yaml` and `--set`; `plan` says what a run wants: models, inputs, cells, products.
* `store` keeps it: files, locks, the ledger of what is done; `cluster` is all of Ray's own concepts.
* `stages` compute, in the order of a run; `commands` look at a run without computing.
* `bench` measures table 8 of a run's models; `deploy` has the manifests for Kubernetes.
"""
