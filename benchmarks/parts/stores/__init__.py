"""Stores that benchmarks read and write: servers of objects, slow file systems, and roots with very many files.

* `object_store` counts requests and delays them, `listed_store` lists millions of keys.
* `matrix` writes the cells of the paper, `many_artifacts` a complete root.
"""
