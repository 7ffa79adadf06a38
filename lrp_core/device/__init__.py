"""Memory, precision, copies, clocks and progress of the computations of models."""
