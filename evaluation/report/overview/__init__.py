"""The first screen: which methods to use, and how sure that is."""
