"""Kinds of artifacts, a module each, but for those of `whole.py`. Their table is in `jobs/products/table.py`."""
