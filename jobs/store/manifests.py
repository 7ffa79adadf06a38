"""All manifests at once. An object store takes two requests for each, so a run leaves them packed into one file too.

The pack is a copy for readers: a manifest counts as packed only where the store still lists it with its old stamp.
Times of object stores are whole seconds, so a manifest of the second in which the pack was written is read anew.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress

from jobs.store.files import Files

FOLDER = "manifest"
PACK = f"{FOLDER}/_packed"  # gzipped JSON; pyarrow would gzip a file so named once more
FEW = 20  # manifests that are read file by file rather than packed
_VERSION = 1
_SECOND_NS = 10**9

#: A version of a file: its path, with its time of change in ns and its size.
Version = tuple[str, tuple[int, int]]


class Manifests:
    """The manifests of one store, as they were when they were last listed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[Version, bytes] = {}
        self._written: set[str] = set()  # paths since then: a version may be of another content
        self._packed: dict[Version, bytes] | None = None  # None until it was looked for

    def contents(self, packed: bool) -> dict[str, bytes]:
        """The content of every manifest by its name. Listed every time; read are those that are new or have changed.

        `packed` says whether to look for the pack, which saves time only where a request takes some.
        """
        listed = list(self._files.stamps(FOLDER, ".json").items())
        if packed and self._packed is None and len(self._new(listed)) > FEW:
            self._packed = self._read_pack()
            self._known = self._packed | self._known
        new = self._new(listed)
        contents = self._files.read_all([path for path, _ in new])
        read = {version: content for version, content in zip(new, contents, strict=True) if content is not None}
        removed = set(new) - read.keys()  # since they were listed
        known = self._known | read
        self._known = {version: known[version] for version in listed if version not in removed}
        self._written.clear()
        names = [path.removeprefix(f"{FOLDER}/").removesuffix(".json") for path, _ in self._known]
        return dict(zip(names, self._known.values(), strict=True))

    def forget(self, path: str) -> None:
        """Have a manifest read again that is about to be written."""
        if path.startswith(FOLDER):
            self._written.add(path)

    def pack(self) -> None:
        """Write the pack anew where many manifests are not in it. Only the owner of the root may."""
        self.contents(packed=True)
        if len(self._known.keys() - (self._packed or {}).keys()) <= FEW:
            return
        entries = {}
        for (path, stamp), content in self._known.items():
            with suppress(UnicodeDecodeError):
                entries[path] = [*stamp, content.decode()]
        text = json.dumps({"version": _VERSION, "manifests": entries}, ensure_ascii=False)
        self._files.write_bytes(PACK, gzip.compress(text.encode(), compresslevel=3))
        self._packed = dict(self._known)

    def _new(self, listed: list[Version]) -> list[Version]:
        return [version for version in listed if version not in self._known or version[0] in self._written]

    def _read_pack(self) -> dict[Version, bytes]:
        """The packed manifests that cannot have changed unseen; none where there is no pack or a broken one."""
        (data,) = self._files.read_all([PACK])
        written_s = self._files.modified_s(PACK)
        if data is None or written_s is None:
            return {}
        try:
            pack = json.loads(gzip.decompress(data))
        except (EOFError, OSError, ValueError, zlib.error):
            return {}
        if not isinstance(pack, dict) or pack.get("version") != _VERSION:
            return {}
        known = {}
        for path, (time_ns, size, text) in pack["manifests"].items():
            if time_ns < int(written_s) * _SECOND_NS:
                known[path, (time_ns, size)] = text.encode()
        return known
