"""How far rounding may move the values of a ranking. Imports no torch.

The rounding of a forward pass depends on the batch, so that the same text may give values with other last digits.
"""

ROUNDING = 1e-5  # values that differ by less than this share of the larger one may be equal up to rounding
SPARE = 8  # entries kept beyond those that are asked for, until near ties are computed again one by one
