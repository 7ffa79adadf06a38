"""Other packages that benchmarks compare with: `peer` times lxt by `lxt_peer`, `peers_script` times several others."""
