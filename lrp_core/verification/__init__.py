"""Checks, on this machine, that methods explain the stock model and that relevance follows the rules.

The stock model is that of transformers, called as its users call it. Each check compares two computations of the same
numbers. They may differ by the effect of rounding, which is measured on the model itself
(`lrp_core.verification.rounding`).
"""
