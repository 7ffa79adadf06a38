"""From numbers to what a person reads: tables, figures, heatmaps and the static site."""
