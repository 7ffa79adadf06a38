"""Models that were verified: this project's own runs, and those of users."""
