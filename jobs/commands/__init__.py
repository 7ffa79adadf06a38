"""The commands of closelook."""
