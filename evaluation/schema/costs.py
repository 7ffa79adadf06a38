"""Schemas of costs: of the batches of a run, and of benchmarks."""

from evaluation.schema.versioned import Long, versioned


class Runtime:
    """The time and memory of a batch.

    `method` names the pass, which may serve several methods; `planned_bytes` and `chunk` are null but for ALTI.
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
    """A number that `closelook bench NAME` measured, or a ratio with its `target`, in `bench/NAME/`.

    The metadata of a file hold its time, the command and the versions of packages.
    """

    bench: str
    device: str
    part: str  # of the benchmark; "ratio" for ratios with a target
    model: str | None  # by its name in the config; random/<geometry> for random weights
    task: str | None
    dtype: str | None
    method: str | None  # or the name of another variant that is measured
    length: int | None  # tokens
    measure: str
    value: float  # the median, if the row has quartiles
    unit: str | None
    q1: float | None
    q3: float | None
    n: Long | None  # values behind the median
    target: float | None
    better: str | None  # lower | higher
    details: str  # further facts, as JSON


BENCH = versioned("bench", 1, Bench)
