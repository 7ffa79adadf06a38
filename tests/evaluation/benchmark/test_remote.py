"""Data behind URLs: files, folders and patterns of stores and of the hub are copied once, and anew when they change."""

import http.server
import io
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.local import LocalFileSystem

from closelook.evaluation.benchmark.sources.files import fetch
from closelook.lrp_core.records.types import UserError

SUFFIXES = (".jsonl", ".csv")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Files:
    """A folder of a place with URLs: `put(name, text)` writes a file there, `url` is the folder's."""

    def __init__(self, put, url):
        self.put, self.url = put, url


@pytest.fixture(params=["s3", "gs", "hf"])
def files(request, tmp_path, monkeypatch):
    name = uuid.uuid4().hex
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        import boto3  # comes with the server

        put = lambda path, text: boto3.client("s3").put_object(Bucket=bucket, Key=f"{name}/{path}", Body=text.encode())  # noqa: E731
        return Files(put, f"s3://{bucket}/{name}")
    served = tmp_path / "served"

    def put(path, text):
        (served / path).parent.mkdir(parents=True, exist_ok=True)
        (served / path).write_text(text)

    if request.param == "gs":  # no server of its kind runs here: its file system is a folder
        of_url = lambda url: (pafs.SubTreeFileSystem(str(served), pafs.LocalFileSystem()), url[len("gs://bucket/") :])  # noqa: E731
        monkeypatch.setattr(pafs, "FileSystem", SimpleNamespace(from_uri=of_url))
        return Files(put, "gs://bucket/")
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: Hub(served))
    return Files(put, "hf://datasets/me/mine@main")


class Hub:
    """Answers as HfFileSystem does for one repository, which lies in a folder."""

    ROOT = "datasets/me/mine@main"

    def __init__(self, folder):
        self.folder, self.files = folder, LocalFileSystem()

    def _there(self, path):
        assert path == self.ROOT or path.startswith(f"{self.ROOT}/"), path
        return str(self.folder / path[len(self.ROOT) + 1 :])

    def _of_hub(self, info):
        path = Path(info["name"])
        inside = path.relative_to(self.folder).as_posix()
        name = self.ROOT if inside == "." else f"{self.ROOT}/{inside}"
        blob = {"blob_id": path.read_text()} if info["type"] == "file" else {}
        return {"name": name, "size": info["size"], "type": info["type"], **blob}

    def invalidate_cache(self):
        pass

    def info(self, path):
        return self._of_hub(self.files.info(self._there(path)))

    def find(self, path, detail):
        below = self.files.find(self._there(path), detail=detail)
        return {info["name"]: info for info in map(self._of_hub, below.values())}

    def open(self, path):
        return open(self._there(path), "rb")


def read(copies):
    return {copy.name: copy.read_text() for copy in copies}


def test_a_file_a_folder_and_a_pattern_are_what_they_would_be_on_this_machine(files):
    url = files.url.rstrip("/")
    for name in ("a.jsonl", "b.csv", "readme.md", "deeper/c.jsonl"):
        files.put(name, f"of {name}")
    assert read(fetch(f"{url}/readme.md", SUFFIXES)) == {"readme.md": "of readme.md"}, "a file may have any suffix"
    assert read(fetch(f"{url}/deeper/c.jsonl", SUFFIXES)) == {"c.jsonl": "of deeper/c.jsonl"}
    assert read(fetch(files.url, SUFFIXES)) == {"a.jsonl": "of a.jsonl", "b.csv": "of b.csv"}
    nested = fetch(files.url, SUFFIXES, nested=True)
    assert [copy.parent.name for copy in nested if copy.name == "c.jsonl"] == ["deeper"]
    assert len(nested) == 3
    assert read(fetch(f"{url}/*.md", SUFFIXES)) == {"readme.md": "of readme.md"}


def test_copies_are_kept_until_the_file_changes(files, cache):
    files.put("a.jsonl", "old")
    (first,) = fetch(files.url, SUFFIXES)
    first.write_text("the copy")
    assert read(fetch(files.url, SUFFIXES)) == {"a.jsonl": "the copy"}, "it is not copied again"
    files.put("a.jsonl", "newer")
    assert read(fetch(files.url, SUFFIXES)) == {"a.jsonl": "newer"}
    assert all(path.is_relative_to(cache) for path in fetch(files.url, SUFFIXES))
    assert not list(cache.rglob("tmp*"))


def test_what_is_not_there_is_told(files):
    files.put("a.jsonl", "text")
    with pytest.raises(UserError, match=r"there is nothing at .*/b\.jsonl"):
        fetch(f"{files.url.rstrip('/')}/b.jsonl", SUFFIXES)
    with pytest.raises(UserError, match=r"no \.txt file at "):
        fetch(files.url, (".txt",))
    with pytest.raises(UserError, match="ftp:// is not supported"):
        fetch("ftp://host/a.jsonl", SUFFIXES)


def test_no_name_of_a_store_leaves_the_folder_of_copies(tmp_path):
    """S3 takes any name; its file system here would list `x/../../a.jsonl`."""
    from closelook.evaluation.benchmark.sources import remote

    infos = {"data/x/../../stolen.jsonl": {"size": 1}, "data/x/fine.jsonl": {"size": 1}}
    files = SimpleNamespace(
        info=lambda path: {"name": path, "type": "directory"},
        find=lambda path, detail: infos,
        open=lambda path: io.BytesIO(),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "_file_system", lambda url: (files, "data/x"))
        copies = fetch("s3://data/x", SUFFIXES, nested=True)
    assert [copy.name for copy in copies] == ["fine.jsonl"]


@pytest.mark.nightly  # the client tries for some seconds
def test_a_store_that_cannot_be_reached_is_no_mistake_of_the_user(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(OSError, match="cannot read s3://data/x"):
        fetch("s3://data/x", SUFFIXES)


def test_a_file_of_a_web_server_is_copied_by_its_url(tmp_path, monkeypatch):
    import datasets.config

    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", tmp_path / "downloads")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    (tmp_path / "a.jsonl").write_text("text")
    handler = lambda *arguments: Quiet(*arguments, directory=str(tmp_path))  # noqa: E731
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}"
        (copy,) = fetch(f"{url}/a.jsonl", SUFFIXES)
        assert copy.read_text() == "text"
        with pytest.raises((UserError, OSError), match=rf"cannot download {url}/b\.jsonl"):
            fetch(f"{url}/b.jsonl", SUFFIXES)
        web.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
