"""The parts of a model, found by the paths of its family, with their weights in the layout of the equations."""
