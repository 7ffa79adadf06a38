"""`python -m tests.recompute ROOT`: every number of a report recomputed from what the root stores.

The formulas are written anew from the specification, with numpy, pandas and scipy and nothing of the product but the
schemas of its files. Intervals and p values, which are draws, agree within 4 standard errors of the Monte Carlo;
everything else to rounding. Prints by product how many numbers were recomputed, which have no recomputation yet and
the largest difference. Exit code 1 where a number differs, with a line for each, and where one has no recomputation
without a reason.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.recompute import (
    copied,
    figures,
    pages,
    products,
    tables_agreement,
    tables_controls,
    tables_costs,
    tables_faithfulness,
    tables_layers,
    tables_removal,
    tables_scores,
    tables_shares,
    tables_sources,
    tables_ways,
)
from tests.recompute.expected import NUMBERS, UNWRITTEN, Compared, Expected, Left, compare
from tests.recompute.facts import Facts
from tests.recompute.figures import FIGURES
from tests.recompute.stored import Root

Check = Callable[[Facts, Mapping[str, str]], Expected | Left | None]
TABLES: dict[str, Check] = {
    **tables_scores.TABLES,
    **tables_faithfulness.TABLES,
    **tables_shares.TABLES,
    **tables_removal.TABLES,
    **tables_costs.TABLES,
    **tables_controls.TABLES,
    **tables_agreement.TABLES,
    **tables_layers.TABLES,
    **copied.TABLES,
    **tables_ways.TABLES,
    **tables_sources.TABLES,
}
SHOWN = 20


def recompute(path: Path, only: str | None = None) -> dict[str, Compared]:
    """The comparison of every table, figure and product of the root at `path`, by name."""
    facts = Facts(Root(path))
    results: dict[str, Compared] = {}
    for row in facts.root.report:
        name = row["table"]
        if only and not name.startswith(only):
            continue
        result = results.setdefault(name, Compared())
        check = figures.check_of(name) if name.startswith(FIGURES) else TABLES.get(name)
        compare(row["id"], row, NUMBERS, check(facts, row) if check else None, result)
    others = {f"stored/{name}": check for name, check in products.PRODUCTS.items()}
    others |= {f"pages/{name}": check for name, check in pages.PAGES.items()}
    for name, check in others.items():
        if only is None or name.startswith(only):
            results[name] = result = Compared()
            for row, columns, expected in check(facts):
                compare(f"{name}: {row['id']}", row, columns, expected, result)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--only", help="names of tables and figures that begin so, as table1 or figures/shares")
    parser.add_argument("--all", action="store_true", help="a line for every difference")
    asked = parser.parse_args(arguments)
    results = recompute(asked.root, asked.only)
    for name, result in results.items():
        shown = result.differences if asked.all else result.differences[:SHOWN]
        print(*shown, sep="\n", end="\n" if shown else "")
        if len(result.differences) > len(shown):
            print(f"{name}: {len(result.differences) - len(shown)} more differences (--all)")
    print(summary(results))
    return int(any(result.differences or result.reasons[UNWRITTEN] for result in results.values()))


def summary(results: Mapping[str, Compared]) -> str:
    """A line for each table and figure, their sum, and why numbers are not recomputed."""
    lines = [f"{'':44} recomputed  not yet  differ  largest difference (draws: beyond 4 errors)"]
    for name, compared in results.items():
        gaps = f"{compared.gap:.2g} ({compared.beyond:.2g})"
        lines.append(f"{name:44} {compared.recomputed:10} {compared.left:8} {len(compared.differences):7}  {gaps}")
    total = [sum(getattr(compared, name) for compared in results.values()) for name in ("recomputed", "left")]
    lines.append(
        f"{'all':44} {total[0]:10} {total[1]:8} {sum(len(compared.differences) for compared in results.values()):7}"
    )
    reasons = sum((compared.reasons for compared in results.values()), Counter())
    if reasons:
        lines.append("not recomputed:")
    lines += [f"{count:10}  {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
