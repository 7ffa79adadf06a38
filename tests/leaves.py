"""Reads records in leaves from pages of the report."""

import json
import re


def island(page, element):
    """The JSON of the script element with this id."""
    (text,) = re.findall(rf'<script type="application/json" id="{element}">(.*?)</script>', page, re.S)
    return json.loads(text)


def first_leaf(page, name):
    """The records of the first leaf."""
    return island(page, f"{name}-leaves")["first"]
