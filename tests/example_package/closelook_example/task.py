"""A task with a source of its own: lines of words, of which the last two are the target and the foil."""

from closelook.evaluation.benchmark.samples import sample
from closelook.evaluation.benchmark.sources.base import Source, one_sample
from closelook.evaluation.tasks import Task


def lines(file):
    """(where it stands, the record) for every record of a file."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        yield f"{file.name}:{number}", line.split()


def parse(words):
    """The sample of a record. What is predicted follows the text, and the first word is the evidence."""
    *text, target, foil = words
    joined = " ".join(text)
    return sample("pairs", joined, len(joined), target, foil, evidence=[(0, len(text[0]))])


LINES = Source(
    name="pairs",
    title="Pairs",
    url="https://example.org",
    licence="CC0",
    suffixes=(".txt",),
    records=lines,
    rows=one_sample(parse),
    brings_evidence=True,
)
PAIRS = Task(name="pairs", title="words in pairs", sources=(LINES,))
