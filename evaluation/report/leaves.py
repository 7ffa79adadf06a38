"""Records too many for one page: leaves, which a page turns to one at a time, opened from the file system too.

Chromium reads no file with `fetch` from file://, and admits no script file there by its hash (integrity wants CORS). A
leaf is therefore a small document with its records as JSON, which a frame of the page loads and which hands them over
by a message: they are read as JSON and never run. A page with leaves admits frames of its own site and nothing else.
The first leaf stands in the page, so that there is something to see at once, and a page of few records needs no other.

To show records so: pass `Leaves.of("name", records)` among the `leaves` of a page (evaluation/report/page.py), add its
`files` to those of the site, and read the records by their number in the page's script::

    const records = Leaves.open("name");           // records.length of them, in their order
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

LEAF_BYTES = 200_000  # of a file: read in a twentieth of a second, and a page with two first leaves stays under 1 MB

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
    """`data` as JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def script_hash(script: str) -> str:
    """The hash by which a content policy admits a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@dataclass(frozen=True)
class Leaves:
    """Records in leaves of about `LEAF_BYTES`; each leaf is a JSON array."""

    name: str  # of the folder of their files
    arrays: tuple[str, ...]  # by leaf, fit for a script element
    starts: tuple[int, ...]  # by leaf: the number of its first record; then how many records there are

    @classmethod
    def of(cls, name: str, records: Iterable[Any], budget_bytes: float = LEAF_BYTES) -> Leaves:
        """`records` can be JSON, in the order of their numbers, and are gone through once. For `budget_bytes` see
        :meth:`of_json`."""
        return cls.of_json(name, map(escaped_json, records), budget_bytes)

    @classmethod
    def of_json(cls, name: str, records: Iterable[str], budget_bytes: float = LEAF_BYTES) -> Leaves:
        """Leaves of records that :func:`escaped_json` made.

        A leaf is full when it would be larger than `budget_bytes`; a record larger than that has a leaf of its own.
        """
        leaves = list(_filled(records, budget_bytes)) or [[]]
        starts = [0]
        for leaf in leaves:
            starts.append(starts[-1] + len(leaf))
        return cls(name, tuple(f"[{','.join(leaf)}]" for leaf in leaves), tuple(starts))

    @cached_property
    def files(self) -> dict[str, str]:
        """Every leaf but the first by its name in the site."""
        policy = f"default-src 'none'; script-src '{script_hash(_SEND)}'; base-uri 'none'; form-action 'none'"
        return {
            f"{self.name}/{at}.html": _LEAF.format(policy=policy, title=escape(self.name), data=array, send=_SEND)
            for at, array in enumerate(self.arrays)
            if at
        }

    @property
    def first(self) -> Markup:
        """The element of the page that says where leaves begin, and holds the records of the first."""
        return Markup('{"starts":%s,"first":%s}') % (Markup(json.dumps(self.starts)), Markup(self.arrays[0]))


def _filled(records: Iterable[str], budget_bytes: float) -> Iterator[list[str]]:
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
