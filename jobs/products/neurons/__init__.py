"""Products about neurons."""
