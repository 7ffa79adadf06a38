"""The parts of `closelook bench chaos`: a small cluster with its stores, faults in them, and a comparison of files."""
