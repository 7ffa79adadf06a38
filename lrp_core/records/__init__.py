"""Records that methods, models and tables are described by, and the batches that methods take and give."""
