"""A run leaves a record of itself: settings, versions, commit, every error, and no secret of its environment."""

import json

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.secrets import without_secrets
from closelook.jobs.stages.record import StageSummary
from closelook.jobs.stages.run import recorded
from closelook.jobs.store import Store
from closelook.jobs.store.files import StoreError
from closelook.lrp_core.records.types import UserError
from closelook.versions import commit, versions

SECRET = "hunter2-never-to-be-seen"


@pytest.fixture
def config(store):
    return RunConfig.load("smoke", store.root)


def records(store):
    return [json.loads(store.read_bytes(path)) for path in store.files("runs", ".json")]


def end_by(error, store, config, *summaries):
    """A run whose stages gave these summaries before the error."""
    with recorded(config, store, ("attribute", "report")) as tell:
        for summary in summaries:
            tell(summary)
        raise error


def test_a_run_is_recorded_with_its_settings_versions_and_every_error(store, config):
    with recorded(config, store, ("attribute", "report")) as tell:
        tell(StageSummary("attribute", computed=2, skipped=1, failures=("first", "second")))
        tell(StageSummary("report", computed=1))
    (record,) = records(store)
    attribute, report = record["stages"]
    assert attribute["failures"] == ["first", "second"]
    assert (attribute["computed"], attribute["up_to_date"], report["stage"]) == (2, 1, "report")
    assert record["config"] == config.model_dump(mode="json")
    assert record["versions"] == versions()
    assert record["commit"] == commit()
    assert record["error"] is None
    assert record["begun"] <= record["ended"]


def test_a_run_with_nothing_to_do_or_that_cannot_be_leaves_no_record(store, config):
    with recorded(config, store, ("attribute",)) as tell:
        tell(StageSummary("attribute", skipped=3))
    with pytest.raises(UserError), recorded(config, store, ("attribute",)):
        raise UserError("no such method")
    assert records(store) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the store\nis gone")])
def test_what_ends_a_run_is_recorded_and_raised(error, store, config):
    with pytest.raises(type(error)):
        end_by(error, store, config, StageSummary("attribute", computed=1))
    (record,) = records(store)
    assert record["error"].startswith(type(error).__name__)
    assert "\n" not in record["error"]
    assert [stage["stage"] for stage in record["stages"]] == ["attribute"]


def test_secrets_of_the_environment_are_in_no_record(store, config, monkeypatch):
    quoted = f'"{SECRET}"\\'  # JSON writes it otherwise
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", quoted)
    error, summary = OSError(f"the server refused {SECRET}"), StageSummary("attribute", failures=(f"no {quoted}",))
    with pytest.raises(OSError, match="the server refused"):
        end_by(error, store, config, summary)
    texts = [store.read_bytes(path).decode() for path in store.files("runs", ".json")]
    assert len(texts) == 1
    assert not any(SECRET in text for text in texts)
    assert all("[AWS_SECRET_ACCESS_KEY]" in text for text in texts)
    assert "[AWS_SECRET_ACCESS_KEY]" in records(store)[0]["error"]


def test_only_values_that_name_a_secret_are_taken_out():
    environment = {"HOME": "/home/someone", "API_KEY": "0123456789", "TOKEN": "short"}
    assert without_secrets("/home/someone 0123456789 short", environment) == "/home/someone [API_KEY] short"


@pytest.mark.parametrize("root", [f"s3://key:{SECRET}@bucket/run", f"s3://bucket/run?secret_key={SECRET}"])
def test_a_root_with_credentials_in_it_is_refused_without_naming_them(root):
    with pytest.raises(StoreError, match="environment") as refused:
        Store(root)
    assert SECRET not in str(refused.value)
