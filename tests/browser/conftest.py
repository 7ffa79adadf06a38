"""Fixtures of tests of pages: one Chromium for each module, one report for each process."""

import pyarrow as pa
import pytest

from closelook.evaluation.report import drawing
from closelook.evaluation.schema import RUNTIME
from closelook.jobs.stages import report
from closelook.jobs.stages.report import samples as explorer
from tests.browser.driver import ATTACK, WIDTHS, browser
from tests.stages import score_plan
from tests.synthetic import CONFIG, write_store


@pytest.fixture(scope="module")
def chromium(chromium_programs):
    with browser(*chromium_programs) as tab:
        yield tab


class Words:
    """A tokenizer whose every word is an attack."""

    def decode(self, ids):
        return " ".join(f"<i>{token}</i>" for token in ids)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of a report on made-up relevance."""
    root = tmp_path_factory.mktemp("site")
    quick = CONFIG.model_copy(update={"report": CONFIG.report.model_copy(update={"resamples": 50, "samples": 4})})
    store, plan = write_store(root, models=("gpt2", "llama"), samples=16, text=ATTACK)
    score_plan(quick, plan, store)
    time_passes(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_pdf", lambda canvas: b"%PDF-1.4")  # no page shows it
        patch.setattr(explorer, "load_tokenizer", lambda model: Words())
        report.write_report(quick, plan, store)
    return root / "report"


def time_passes(store):
    """Runtimes of both models at two lengths."""
    timing = {"batch_id": "b", "stage": "method", "batch": 2, "device": "cpu"}
    for model in ("gpt2", "llama"):
        rows = [
            timing | {"method": method, "length": length, "wall_s": length / 100, "peak_bytes": length << 20}
            for method in ("gradients", "rollout")
            for length in (8, 32)
        ]
        path = f"{store.runtime(model, 'sva', 'float32')}/0.parquet"
        store.write_shard(path, pa.Table.from_pylist(rows, RUNTIME), RUNTIME)


@pytest.fixture
def page(chromium, site):
    """Opens a page at desk width; afterwards the page must have had nothing to complain about."""

    def open_page(name="index.html"):
        chromium.resize(*WIDTHS["desk"])
        chromium.open((site / name).as_uri())
        return chromium

    yield open_page
    assert chromium.complaints() == []
