"""Leaves: files of records that a page loads one at a time, also when it is opened from the file system.

Pages opened from file:// cannot read files with `fetch` in Chromium, nor load script files that are admitted by a hash
(integrity checks need CORS). A leaf is therefore a small HTML document that holds its records as JSON. A frame of the
page loads it, and it hands the records over by a message: they are read as JSON and never run. A page with leaves
admits frames of its own site and nothing else. The first leaf is part of the page, so that the page shows records at
once and a page of few records needs no further leaf.

To show records in leaves, pass `Leaves.of("name", records)` among the `leaves` of a page (evaluation/report/page.py),
add its `files` to those of the site, and read the records by their number in the page's script::

    const records = Leaves.open("name");           // all records.length of them, in order
    const record = await records.get(17);          // one record
    const some = await records.slice(100, 150);    // these records
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup, escape

Entry = dict[str, Any]  # what a page's script shows of a sample, an answer or a neuron
LEAF_BYTES = 200_000  # size of a file: it is read within 50 ms, and a page with two first leaves stays under 1 MB

_SEND = (
    'parent.postMessage(document.getElementById("leaf").textContent, '
    'location.protocol === "file:" ? "*" : location.origin);'
)
_LEAF = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{title}</title></head><body>'
    '<script type="application/json" id="leaf">{data}</script><script>{send}</script></body></html>\n'
)


def escaped_json(data: Any) -> str:
    r"""`data` as JSON for a script element: no string in it can end the element or open a comment.

    >>> print(escaped_json({"text": "</script>"}))
    {"text":"\u003c/script\u003e"}
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def script_hash(script: str) -> str:
    """The hash by which a content security policy admits a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@dataclass(frozen=True)
class Leaves:
    """Records in leaves of about `LEAF_BYTES`; each leaf is a JSON array."""

    name: str  # of the folder with their files
    arrays: tuple[str, ...]  # the JSON array of each leaf, escaped for a script element
    starts: tuple[int, ...]  # the number of each leaf's first record, then the number of all records

    @classmethod
    def of(cls, name: str, records: Iterable[Any], budget_bytes: float = LEAF_BYTES) -> Leaves:
        """Leaves of `records` that can be written as JSON, in their order; the records are iterated once."""
        return cls.of_json(name, map(escaped_json, records), budget_bytes)

    @classmethod
    def of_json(cls, name: str, records: Iterable[str], budget_bytes: float = LEAF_BYTES) -> Leaves:
        """Leaves of records that are JSON texts of :func:`escaped_json`.

        A leaf holds as many records as fit into `budget_bytes`; a record that is larger has a leaf to itself.
        """
        leaves = list(_filled(records, budget_bytes)) or [[]]
        starts = [0]
        for leaf in leaves:
            starts.append(starts[-1] + len(leaf))
        return cls(name, tuple(f"[{','.join(leaf)}]" for leaf in leaves), tuple(starts))

    @cached_property
    def files(self) -> dict[str, str]:
        """The files of all leaves but the first, by their names in the site."""
        policy = f"default-src 'none'; script-src '{script_hash(_SEND)}'; base-uri 'none'; form-action 'none'"
        title = escape(self.name)
        files = {}
        for at, array in enumerate(self.arrays[1:], start=1):
            files[f"{self.name}/{at}.html"] = _LEAF.format(policy=policy, title=title, data=array, send=_SEND)
        return files

    @property
    def first(self) -> Markup:
        """The JSON in the page: the number of each leaf's first record, and the records of the first leaf."""
        return Markup('{"starts":%s,"first":%s}') % (Markup(json.dumps(self.starts)), Markup(self.arrays[0]))


def _filled(records: Iterable[str], budget_bytes: float) -> Iterator[list[str]]:
    """Records in runs of at most `budget_bytes` characters, commas included; a longer record is a run by itself."""
    leaf: list[str] = []
    size = 0
    for record in records:
        if leaf and size + len(record) > budget_bytes:
            yield leaf
            leaf, size = [], 0
        leaf.append(record)
        size += len(record) + 1
    if leaf:
        yield leaf
