"""Benchmark results: their record, how they are stored, and table 8 of a run's models.

`table_8` measures, `record` holds results and the clock, `storage` stores results and reads them for the report.
Benchmarks of the software itself are in `benchmarks/`, in a clone of the repository.
"""
