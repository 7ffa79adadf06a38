"""Parts of a model as its family describes them, with their weights laid out as the mathematics has them."""
