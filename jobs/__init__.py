"""Runs as Ray batch jobs: their plan, their storage, their computation, and the command line.

* `__main__` is the command line; `methods` and `tasks` are the tables of records, those of installed packages included.
* `config` reads `conf/*.yaml` and `--set`; `plan` derives what a run computes: models, inputs, cells, products.
* `store` keeps the results: files, locks, the ledger of what is done; `cluster` is everything that deals with Ray.
* `stages` compute, in the order of a run; `products` are what they compute, and `runner` is the code of a worker.
* `commands` hold the commands; `notebook` and `results` are the Python library `closelook`.
* `bench` measures table 8 of a run's models; `deploy` is for Kubernetes.
"""
