"""What the report shows, read from the store."""
