"""Schemas of costs: batches of a run, and benchmarks."""

from evaluation.schema.versioned import Long, versioned


class Runtime:
    """The time and memory of a batch.

    `method` names the pass (one pass serves several methods); planner columns are null outside ALTI.
    """

    batch_id: str
    method: str
    stage: str  # forward | backward | aggregate | method
    length: int  # padded length of the batch, tokens
    batch: int  # samples in the batch
    wall_s: float
    peak_bytes: Long | None
    planned_bytes: Long | None
    chunk: int | None
    device: str


RUNTIME = versioned("runtime", 1, Runtime)


class Bench:
    """One measured number or promised ratio of `closelook bench NAME`, in `bench/NAME/`.

    A ratio has a `target`; a file's metadata hold its time, the command and the versions of packages.
    """

    bench: str
    device: str
    part: str  # of the benchmark; "ratio" for what is promised
    model: str | None  # by its name in the config; random/<geometry> for random weights
    task: str | None
    dtype: str | None
    method: str | None  # or another way of doing what is measured
    length: int | None  # tokens
    measure: str
    value: float  # the median where there are quartiles
    unit: str | None
    q1: float | None
    q3: float | None
    n: Long | None  # values behind the median
    target: float | None
    better: str | None  # lower | higher
    details: str  # what else was said of it, JSON


BENCH = versioned("bench", 1, Bench)
