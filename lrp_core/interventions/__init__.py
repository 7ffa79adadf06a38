"""Changes of a forward pass that are an input of each row, so that one forward serves many.

What every intervention promises:

* What is changed is an input of a row: rows of one batch may each have another change, or none.
* It is a scope: inside the `with` the model, or the batch that the scope gives, is changed; nothing else notices.
* Leaving the scope undoes everything, after an error too: the model's next forward is bit-identical to its first.
* Interventions combine: tokens may be removed, inside that heads, in any row of one batch, in any order.

`tokens` takes tokens from the input, `heads` attention heads from the blocks; `neurons` sets or
scales neurons of their feed-forward layers. `randomised` is a scope too, but changes weights, for every row alike.
"""
