"""Table 8 of a run's own models, and results of benchmarks: the record, its Parquet, and those that ship.

`table_8` measures, `record` has the results and the clock, `storage` keeps results and reads them for the report.
Benchmarks of the software are `benchmarks/` in a clone of the repository.
"""
