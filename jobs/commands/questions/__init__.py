"""Commands that explain the prediction of a model for a text."""
