"""Products that control methods: random weights, exact values."""
