"""Making the nodes of a run: units are cut, streamed through workers and committed, and complete nodes are closed."""
