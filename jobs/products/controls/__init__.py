"""Products that control methods: other weights, the same function, exact values."""
