"""All manifests at once. An object store takes two requests for each, so a run leaves them packed into one file too.

The pack is a copy for readers: a manifest counts as packed only where the store's listing still has it as it was. Times
of object stores are whole seconds, so one of the second in which the pack was written, or of a later one, is read anew.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping

from jobs.store.files import Files

FOLDER = "manifest"
PACK = f"{FOLDER}/_packed"  # gzipped JSON; pyarrow would gzip a file so named once more
FEW = 20  # that are read one by one rather than packed
_VERSION = 1
_SECOND_NS = 10**9

Stamp = tuple[int, int]  # time of change in ns, and size


class Manifests:
    """The manifests of one store, as they were when they were last listed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, tuple[Stamp, bytes]] = {}  # by path
        self._packed: Mapping[str, tuple[Stamp, bytes]] | None = None  # None until it was looked for

    def contents(self, packed: bool) -> dict[str, bytes]:
        """The content of every manifest by its name. Listed every time; read are those that are new or have changed.

        `packed` says whether to look for the pack, which saves time only where a request takes some.
        """
        there = self._files.stamps(FOLDER, ".json")
        if packed and len(self._new(there)) > FEW and self._packed is None:
            self._packed = self._read_pack()
            self._known = {**self._packed, **self._known}
        new = self._new(there)
        read = dict(zip(new, self._files.read_all(new), strict=True))
        before, self._known = self._known, {}
        for path, stamp in there.items():
            content = read[path] if path in read else before[path][1]
            if content is not None:  # it was not removed since it was listed
                self._known[path] = stamp, content
        names = {path: path.removeprefix(f"{FOLDER}/").removesuffix(".json") for path in self._known}
        return {names[path]: content for path, (_, content) in sorted(self._known.items())}

    def forget(self, path: str) -> None:
        """Forgets a manifest that is about to be written."""
        self._known.pop(path, None)

    def pack(self) -> None:
        """Write the pack anew where many manifests are not in it. Only who owns the root may."""
        self.contents(packed=True)
        packed = self._packed or {}
        if sum(packed.get(path, (None,))[0] != stamp for path, (stamp, _) in self._known.items()) > FEW:
            whole = {path: known for path, known in self._known.items() if _is_text(known[1])}
            entries = {path: [*stamp, content.decode()] for path, (stamp, content) in whole.items()}
            text = json.dumps({"version": _VERSION, "manifests": entries}, ensure_ascii=False)
            self._files.write_bytes(PACK, gzip.compress(text.encode(), compresslevel=3))
            self._packed = dict(self._known)

    def _new(self, there: Mapping[str, Stamp]) -> list[str]:
        return [path for path, stamp in there.items() if self._known.get(path, (None,))[0] != stamp]

    def _read_pack(self) -> dict[str, tuple[Stamp, bytes]]:
        """What is packed and cannot have changed unseen."""
        (data,) = self._files.read_all([PACK])
        written_s = self._files.modified_s(PACK) if data is not None else None
        if data is None or written_s is None:
            return {}
        try:
            pack = json.loads(gzip.decompress(data))
        except (EOFError, OSError, ValueError, zlib.error):  # it is broken, and but a copy
            return {}
        if not isinstance(pack, dict) or pack.get("version") != _VERSION:
            return {}
        entries = pack["manifests"].items()
        limit_ns = int(written_s) * _SECOND_NS
        return {path: ((time, size), text.encode()) for path, (time, size, text) in entries if time < limit_ns}


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
