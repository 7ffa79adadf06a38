"""The parts of `closelook bench chaos`: a small cluster with its stores, what is done to them, and the comparison."""
