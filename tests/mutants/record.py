"""The record of a mutant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A small wrong change of the product, and a test that fails when it is made."""

    name: str
    effect: str  # what becomes wrong for a user
    file: str
    before: str  # text that occurs once in the file
    after: str  # what takes its place
    test: str  # pytest's id of the test
