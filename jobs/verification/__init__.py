"""Models that `closelook verify` was run on, by this project and by users."""
