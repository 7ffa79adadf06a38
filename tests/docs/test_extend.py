"""docs/extend.md: its tables are there, and its examples run as written."""

import re
import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from closelook.jobs.__main__ import main
from closelook.jobs.commands.listings.config import keys
from closelook.jobs.commands.options import app
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.stages import report
from closelook.jobs.stages.report import samples as explorer
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, Request
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.rules import COMPOSITES
from closelook.lrp_core.rules.composite import RULES
from tests.stages import score_plan
from tests.synthetic import CONFIG, write_store
from tests.tiny import ragged_rows, tiny_model

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extend.md").read_text()
BLOCKS = {path: code for _, path, code in re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)}
ROWS = [re.split(r" *\| *", row.strip("| ")) for row in re.findall(r"^\| an? .*$", TEXT, re.MULTILINE)]
PACKAGE = "tests/example_package"


def module_of(path):
    """The name by which a file of a room, or of the tests, is imported."""
    name = path.removesuffix(".py").replace("/", ".")
    return name if name.startswith("tests.") else f"closelook.{name}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_folder_or_file_and_a_table_that_are_there(row):
    _, written, line, group = row
    for path in re.findall(r"`(\w+/\S+)`", written):
        assert (ROOT / path).is_file() or (ROOT / path).parent.is_dir()
    for table, path in re.findall(r"`([A-Z_]+)` of `(\S+)`", line):
        assert len(getattr(import_module(module_of(path.removesuffix("/__init__.py"))), table))
    if group.startswith("`"):
        assert f'"{group.strip("`")}"' in (ROOT / PACKAGE / "pyproject.toml").read_text()


def test_fourteen_things_can_be_added():
    assert len(ROWS) == 14


@pytest.fixture
def written(monkeypatch):
    """Does what a block says: a new module under its path, or lines in one that is there."""

    def write(path):
        name = module_of(path)
        if (ROOT / path).is_file():
            module = import_module(name)
            namespace = dict(vars(module))
            exec(compile(BLOCKS[path], path, "exec"), namespace)
            for key in namespace.keys() - vars(module).keys():
                monkeypatch.setattr(module, key, namespace[key], raising=False)
            return module
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(BLOCKS[path], path, "exec"), vars(module))
        return module

    return write


def test_a_part_of_the_report_is_one_module_and_one_line(tmp_path, monkeypatch, written):
    part = written("jobs/stages/report/parts/lengths.py").lengths_part
    monkeypatch.setattr(report, "PARTS", (*report.PARTS, part))
    monkeypatch.setattr(explorer, "entries", lambda *_: [])
    config = CONFIG.model_copy(update={"report": CONFIG.report.model_copy(update={"samples": 0})})
    store, plan = write_store(tmp_path, samples=4)
    report.write_report(config, plan, store)
    assert "Samples of each task from the shortest to the longest." in store.read_bytes("report/curves.html").decode()
    assert store.read_bytes("report/figures/lengths.svg").startswith(b"<?xml")


def test_a_product_is_a_module_and_a_line(tmp_path, monkeypatch, written):
    schema = written("evaluation/schema/relevance.py").SPARSITY
    product = written("jobs/products/sparsity.py").SPARSITY
    every = {**PRODUCTS, product.name: product}
    for module in (
        "closelook.jobs.products.table",
        "closelook.jobs.runner.worker",
        "closelook.jobs.stages.compute",
        "closelook.jobs.commands.roots.status",
    ):
        monkeypatch.setattr(f"{module}.PRODUCTS", every)
    monkeypatch.setattr("closelook.jobs.stages.compute.is_of_package", lambda name: name == product.name)
    store, plan = write_store(tmp_path, tasks=("sva",), samples=6)

    def states():
        return collect(Run(CONFIG, plan, Ledger(store)))["gpt2", "sva", "float32", "sparsity"].states

    methods = len({planned.artifact.method for planned in plan.cells()})
    assert states() == {"missing": methods}
    summary = score_plan(CONFIG, plan, store)
    assert summary.complete, summary.failures
    assert f"{methods} sparsities made, 0 were up to date" in summary.lines
    assert states() == {"done": methods}
    assert score_plan(CONFIG, plan, store).computed == 0
    for node in product.nodes(Run(CONFIG, plan, Ledger(store))):
        shares = Ledger(store).read(node.artifact, schema)["share"].to_pylist()
        assert all(0 < share <= 1 for share in shares)


def test_a_product_of_a_package_that_workers_cannot_compute_is_refused_by_name(tmp_path, monkeypatch):
    product = replace(PRODUCTS["scores"], name="idle", compute=None)
    monkeypatch.setattr("closelook.jobs.stages.compute.PRODUCTS", {**PRODUCTS, product.name: product})
    monkeypatch.setattr("closelook.jobs.stages.compute.is_of_package", lambda name: name == product.name)
    store, plan = write_store(tmp_path, tasks=("sva",), samples=6)
    with pytest.raises(UserError, match="product idle of an installed package has no `units` or no `compute`"):
        score_plan(CONFIG, plan, store)


def test_a_rule_of_the_package_changes_the_gradient_that_its_method_reads(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / PACKAGE))
    from closelook_example.method import OPEN_LOOP

    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    relevance, stock = OPEN_LOOP(view, batch, heads=True), METHODS["attnlrp"](view, batch, heads=True)
    torch.testing.assert_close(relevance.explained, stock.explained)
    assert relevance.heads is not None
    assert not torch.allclose(relevance.tokens, stock.tokens)
    request = Request("open_loop")
    same = explain_many(view, batch, [request], composite=COMPOSITES["attnlrp"])[request]
    assert torch.equal(same.tokens, stock.tokens)


def test_a_rule_that_users_choose_is_a_function_and_its_name_in_two_tables(monkeypatch, written):
    module = written("lrp_core/rules/softmax.py")
    monkeypatch.setitem(module.SOFTMAX_RULES, "halved", module.HALVED)
    monkeypatch.setattr("closelook.lrp_core.rules.composite.RULES", {**RULES, "softmax": (*RULES["softmax"], "halved")})
    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view), pad_id=0)
    relevance = [
        METHODS["attnlrp"](view, batch, composite={"softmax": rule}).tokens
        for rule in ("epsilon", "halved", "constant")
    ]
    assert not torch.allclose(relevance[0], relevance[1])
    assert not torch.allclose(relevance[1], relevance[2])


def test_a_command_is_a_function(monkeypatch, capsys, written):
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    written("jobs/commands/listings/commands.py")
    for arguments, shown in (
        (["composites"], "plain\nlrp\nattnlrp\n"),
        (["--help"], "The composites that methods have."),
    ):
        monkeypatch.setattr(sys, "argv", ["closelook", *arguments])
        with suppress(SystemExit):
            main()
        assert shown in capsys.readouterr().out


def test_a_key_of_the_config_is_a_field_with_its_documentation(tmp_path, monkeypatch):
    (tmp_path / "sparsity_config.py").write_text(BLOCKS["jobs/config/sparsity.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    record = import_module("sparsity_config").SparsityConfig
    (key,) = keys(record, "sparsity.")
    assert (key.path, key.takes, key.default) == ("sparsity.share", "number", "0.5")
    assert key.about == "share of a sample's relevance that these tokens hold"
