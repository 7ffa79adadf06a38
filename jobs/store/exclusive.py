"""Creation of a file that must not exist yet: of several processes that create one at the same time, one succeeds.

pyarrow has no conditional writes, so object stores are reached through obstore: `If-None-Match: *` on S3, generation 0
on Google Cloud Storage.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from closelook.jobs.store.retry import one_line, retried


def create_local(target: str, data: bytes) -> bool:
    """Create the local file `target`. Returns False if it exists. A reader may see it before it has its content."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        stream = open(target, "xb")  # noqa: SIM115
    except FileExistsError:
        return False
    try:
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:  # such as a full disk
        os.remove(target)
        raise
    return True


def create_object(root: str, key: str, region: str | None, data: bytes) -> bool:
    """Create an object in the bucket of the URL `root`. Returns False if it exists.

    `key` is the object's full path with the bucket. Raises OSError if the store cannot be reached, or has no
    conditional writes.
    """
    bucket, _, path = key.partition("/")
    return retried(lambda: _put_new(_bucket(root, bucket, region), path, data))


def _put_new(bucket: Any, path: str, data: bytes) -> bool:
    """Create the object at `path`. Returns False if it exists."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        obstore.put(bucket, path, data, mode="create")
        return True
    except AlreadyExistsError:  # obstore says so after status 412, and after 409
        try:
            obstore.head(bucket, path)
        except FileNotFoundError as error:
            raise ConnectionError(f"another write of {path} was under way") from error
        return False
    except BaseError as error:
        raise OSError(f"a conditional write of {path} failed: {one_line(error)}") from error


def _bucket(root: str, bucket: str, region: str | None) -> Any:
    """The bucket of a root for obstore, with the endpoint and the credentials that pyarrow takes for this URL."""
    from obstore.store import GCSStore, S3Store

    parts = urlsplit(root)
    if parts.scheme == "gs":
        return GCSStore(bucket)
    query = dict(parse_qsl(parts.query))
    settings: dict[str, Any] = {**_profile(), "region": region}
    endpoint = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        with_scheme = endpoint if "://" in endpoint else f"{query.get('scheme', 'https')}://{endpoint}"
        settings["endpoint"] = with_scheme
    settings = {name: value for name, value in settings.items() if value}
    return S3Store(bucket, client_options={"allow_http": True}, **settings)


def _profile() -> dict[str, str]:
    """The keys of the profile in AWS's credentials file, which obstore does not read; {} if the environment has any."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    profiles = configparser.ConfigParser(interpolation=None)
    profiles.read(file)
    name = os.environ.get("AWS_PROFILE", "default")
    known = dict(profiles[name]) if profiles.has_section(name) else {}
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    return {ours: known[theirs] for ours, theirs in names.items() if theirs in known}
