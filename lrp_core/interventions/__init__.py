"""Interventions: changes of a forward pass, given for each row, so that one forward can run many of them.

Every intervention keeps these promises:

* Rows of one batch may each have another change, or none.
* It is a context manager: inside the `with` the model, or the batch that it yields, is changed, and nothing else.
* Leaving the context undoes everything, also after an error: the model's next forward gives the same bits as before.
* Interventions can be nested in any order: tokens may be removed and, inside that, heads.

`tokens` removes tokens from the input, `heads` removes attention heads, `neurons` sets or scales neurons of
feed-forward layers. `randomised` is a context manager too, but changes weights, for all rows alike.
"""
