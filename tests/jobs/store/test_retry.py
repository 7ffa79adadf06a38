"""A store or a hub that is busy for a while: errors that pass are waited out, all others are told at once."""

import errno
import time
from types import SimpleNamespace

import boto3
import obstore
import pytest
from moto.server import ThreadedMotoServer

from closelook.jobs.store import Store, StoreFull, exclusive, retry
from closelook.jobs.store.lock import is_asked
from closelook.jobs.store.retry import StillUnavailable, is_passing, retried
from tests.jobs.hub import Hub
from tests.jobs.small import closelook, config_of, ended, prepared, relevance_of, rows_of
from tests.stages import attribute

ROWS = rows_of(24)
PASSING = [
    OSError("When completing multipart upload: AWS Error SLOW_DOWN during PutObject operation: Please wait."),
    OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."),
    OSError("AWS Error UNKNOWN (HTTP status 409) during PutObject operation: Unable to parse ExceptionName"),
    OSError("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 56, Recv failure"),
    OSError("google::cloud::Status(UNAVAILABLE: Permanent error in Write(): Socket closed)"),
    OSError(errno.ETIMEDOUT, "Connection timed out"),
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError("The read operation timed out"),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/timeout"),
    PermissionError(errno.EACCES, "Permission denied"),
    StoreFull(errno.ENOSPC, "no space left under /data: free some and run again"),
    OSError("AWS Error ACCESS_DENIED during PutObject operation: Access Denied"),
    OSError("AWS Error NO_SUCH_BUCKET during PutObject operation"),
    ValueError("the model timed out"),
    StillUnavailable("AWS Error SLOW_DOWN (tried 8 times in 120 s)"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_passes_is_tried_again(error, monkeypatch):
    monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.0)
    answers = [error, error, "done"]

    def call():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retried(call) == "done"


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_what_does_not_pass_is_told_at_once(error):
    calls = []

    def call():
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        retried(call)
    assert raised.value is error
    assert len(calls) == 1


def test_what_does_not_pass_in_time_says_how_often_it_was_tried(monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(retry, "time", clock)

    def call():
        raise ConnectionResetError("Connection reset by peer")

    # Waits of 0.5, 1, 2, 4 and 8 s, each cut to between half and all of it, pass 5 s after four of them or after five.
    message = r"^Connection reset by peer \(tried [56] times in \d+ s; this may pass: run again later\)$"
    with pytest.raises(StillUnavailable, match=message) as raised:
        retried(call, 5)
    assert 5 <= now[0] <= 13
    assert not is_passing(raised.value), "who calls the caller does not wait as long again"


def test_an_error_passes_by_itself_or_by_its_causes_and_not_by_what_was_handled_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: pytest.fail("it is tried again"))
    store = Store(str(tmp_path))
    try:
        raise ConnectionError("the hub does not answer")
    except ConnectionError:
        assert not is_asked(store)
        with pytest.raises(FileNotFoundError):
            store.read_bytes("lock/stop")
    with pytest.raises(OSError, match="a wrapper") as raised:
        raise OSError("a wrapper") from ConnectionError("the hub does not answer")
    assert is_passing(raised.value)


def test_the_first_of_several_errors_is_told_too(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_WAIT_S", 0.0)
    errors = [ConnectionError("the cause"), TimeoutError("what followed")]

    def call():
        raise errors.pop(0) if len(errors) > 1 else errors[0]

    with pytest.raises(StillUnavailable, match=r"what followed \(at first: the cause; tried \d+ times") as raised:
        retried(call, 0.01)
    assert raised.value.__cause__ is errors[0]


@pytest.fixture
def bucket(monkeypatch):
    """(name, refuse): an S3 server, and a call that lets it answer 503 to the next so many requests.

    `refuse(n, cut=True)` lets it answer the next n reads of files with half of the content, as if that were all.
    """
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    boto3.client("s3").create_bucket(Bucket="busy")
    healthy = server._server.app
    refusals, cuts = [0], [0]

    def app(environment, start):
        is_read = environment["REQUEST_METHOD"] == "GET" and not environment["QUERY_STRING"]
        if cuts[0] and is_read:
            cuts[0] -= 1
            answer = []
            body = b"".join(healthy(environment, lambda *head: answer.extend(head)))
            status, headers = answer
            half = body[: len(body) // 2]
            headers = [header for header in headers if header[0].lower() != "content-length"]
            start(status, [*headers, ("Content-Length", str(len(half)))])
            return [half]
        if refusals[0]:
            refusals[0] -= 1
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
            return [text]
        return healthy(environment, start)

    def refuse(requests, cut=False):
        (cuts if cut else refusals)[0] = requests

    server._server.app = app
    yield "busy", refuse
    server.stop()


def test_an_object_store_that_is_busy_for_a_while_costs_no_unit(bucket, tmp_path, model, inline):
    name, refuse = bucket
    config = config_of(f"s3://{name}/run", model)
    store = prepared(config, ROWS)
    inline.before_unit = lambda index: refuse(40) if index == 1 else None  # pyarrow itself asks 31 times
    summary = attribute(config, store)
    assert summary.complete, summary.failures
    undisturbed = config_of(tmp_path / "root", model)
    other = prepared(undisturbed, ROWS)
    inline.before_unit = lambda index: None
    assert attribute(undisturbed, other).complete
    assert relevance_of(config, store) == relevance_of(undisturbed, other)


@pytest.mark.nightly  # for as long as the hub refuses
def test_a_hub_that_turns_workers_away_for_a_while_does_not_fail_the_model(tmp_path, model):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    since = []

    def busy(path):
        if path.endswith(".safetensors"):
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] < 8  # longer than the hub's own client tries

    hub = Hub({"owner/gpt2": model}, busy)
    online = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    (tmp_path / "hub.yaml").write_text(
        config_of(config.root, models=[{"name": "gpt2", "id": "owner/gpt2"}]).model_dump_json()
    )
    code, out, err = ended(
        closelook("attribute", "--config", str(tmp_path / "hub.yaml"), module="tests.jobs.inline", **online)
    )
    hub.close()
    assert code == 0, err
    assert "attribute: 3 computed, 0 up to date" in out
    assert hub.turned_away > 6
    assert store.files("attempts", ".json", recursive=True) == []


def test_a_conflict_with_another_write_of_an_object_that_is_not_there_passes(monkeypatch):
    def conflict(*args, **options):
        raise obstore.exceptions.AlreadyExistsError("409 Conflict")

    bucket = obstore.store.MemoryStore()
    with monkeypatch.context() as patches:
        patches.setattr(obstore, "put", conflict)
        with pytest.raises(ConnectionError, match="another write of claim was under way") as raised:
            exclusive._put_new(bucket, "claim", b"one")
    assert is_passing(raised.value)
    assert exclusive._put_new(bucket, "claim", b"one")
    assert not exclusive._put_new(bucket, "claim", b"two")
