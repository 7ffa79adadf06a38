"""Kinds of artifacts, a module each. Their table is in `jobs/products/table.py`."""
