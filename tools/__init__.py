"""Scripts of maintainers: nothing here is needed by an installed closelook."""
