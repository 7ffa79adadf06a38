"""Changes of a forward pass that are an input of each row, so that one forward serves many.

An intervention is a scope: inside the `with` the model, or the batch the scope gives, is changed row by row; leaving it
undoes everything. Interventions combine: tokens may be removed, inside that heads, in any row of one batch.
"""
