"""What computing took: batches of a run, and benchmarks."""

from __future__ import annotations

import pyarrow as pa

from evaluation.schema.versioned import FLOAT, INT, STR, versioned

#: What a batch cost. `method` names the pass (one pass serves several methods); planner columns are null outside ALTI.
RUNTIME = versioned(
    "runtime",
    1,
    [
        ("batch_id", STR, False),
        ("method", STR, False),
        ("stage", STR, False),  # forward | backward | aggregate | method
        ("length", INT, False),  # padded length of the batch, tokens
        ("batch", INT, False),  # samples in the batch
        ("wall_s", FLOAT, False),
        ("peak_bytes", pa.int64(), True),
        ("planned_bytes", pa.int64(), True),
        ("chunk", INT, True),
        ("device", STR, False),
    ],
)

#: One measured number or promised ratio of `closelook bench NAME`, in `bench/NAME/`. A ratio has a `target`; a file's
#: metadata hold its time, the command and the versions of packages.
BENCH = versioned(
    "bench",
    1,
    [
        ("bench", STR, False),
        ("device", STR, False),
        ("part", STR, False),  # of the benchmark; "ratio" for what is promised
        ("model", STR, True),  # by its name in the config; random/<geometry> for random weights
        ("task", STR, True),
        ("dtype", STR, True),
        ("method", STR, True),  # or another way of doing what is measured
        ("length", INT, True),  # tokens
        ("measure", STR, False),
        ("value", FLOAT, False),  # the median where there are quartiles
        ("unit", STR, True),
        ("q1", FLOAT, True),
        ("q3", FLOAT, True),
        ("n", pa.int64(), True),  # values behind the median
        ("target", FLOAT, True),
        ("better", STR, True),  # lower | higher
        ("details", STR, False),  # what else was said of it, JSON
    ],
)
