"""Checks on this machine that the explained model is the stock model, and that relevance follows its rules.

Each check compares two computations of the same numbers. They may lie apart by what rounding does to such numbers,
which is measured on the model itself (`lrp_core.verification.rounding`).
"""
