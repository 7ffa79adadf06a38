"""Modules of the product import each other in no circle, nor do rooms, but for those that are listed with a reason.

Every import counts, also those inside functions and for types alone. An import of a name is one of the most specific
module of the product, and of the packages around that module, whose `__init__` Python runs first; packages around the
importing module are running already. A room is a folder in one of the top-level packages, with the folders inside it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
OUTSIDE = ("benchmarks", "tools")  # of the package closelook
PRODUCT = ("lrp_core", "alti", "evaluation", "jobs", *OUTSIDE)

#: Groups of modules that reach each other by imports, and the reason why they stay.
MODULES: dict[frozenset[str], str] = {
    frozenset(
        ("closelook.lrp_core.operations.forward", "closelook.lrp_core.views.view")
    ): "a forward pass takes a view, and a view has its logits by one",
}

#: Groups of rooms that reach each other by imports, and the reason why they stay.
ROOMS: dict[frozenset[str], str] = {
    frozenset(
        ("closelook.evaluation.benchmark", "closelook.evaluation.tasks")
    ): "tasks name their sources; readers ask the tasks",
    frozenset(
        ("closelook.jobs.products", "closelook.jobs.runner")
    ): "workers look products up; products close by the runner",
    frozenset(
        ("closelook.lrp_core.operations", "closelook.lrp_core.views")
    ): "a forward pass takes a view, and a view has its logits by one",
}


def modules() -> dict[str, Path]:
    """The file of every module of the product."""
    files = {}
    for package in PRODUCT:
        for file in (REPOSITORY / package).rglob("*.py"):
            parts = file.relative_to(REPOSITORY).with_suffix("").parts
            inside = () if package in OUTSIDE else ("closelook",)
            files[".".join((*inside, *parts)).removesuffix(".__init__")] = file
    front = REPOSITORY / "src"
    for file in (*front.glob("closelook/*.py"), *front.glob("closelook/explaining/**/*.py")):
        files[".".join(file.relative_to(front).with_suffix("").parts).removesuffix(".__init__")] = file
    return files


def imported(code: str) -> Iterator[str]:
    """The full names of all that `code` imports, at any depth. Raises AssertionError for a relative import."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports(module: str, code: str, known: Iterable[str]) -> set[str]:
    """The modules among `known` that `module` imports by its `code`."""
    modules = set()
    for name in imported(code):
        prefixes = accumulate(name.split("."), "{}.{}".format)
        *packages, named = [prefix for prefix in prefixes if prefix in known] or [module]
        modules |= {named, *(package for package in packages if not module.startswith(f"{package}."))}
    return modules - {module}


def groups(graph: Mapping[str, Iterable[str]]) -> set[frozenset[str]]:
    """The largest groups, of two nodes or more, in which every node reaches every other."""
    reached = {node: reachable(graph, node) for node in graph}
    together = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph}
    return {group for group in together if len(group) > 1}


def reachable(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead.extend(graph[node])
    return seen


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules that each module imports, without itself."""
    files = modules()
    return {name: imports(name, file.read_text(encoding="utf-8"), files) for name, file in files.items()}


def room(module: str, file: Path) -> str:
    """The folder of a module at the top level, and the folder in that one."""
    if file.is_relative_to(REPOSITORY / "src"):
        return ".".join(module.split(".")[:2])
    folders = ".".join(file.relative_to(REPOSITORY).parts[:-1][:2])
    return f"closelook.{folders}" if module.startswith("closelook.") else folders


def rooms(graph: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The rooms that each room imports, without itself."""
    files = modules()
    room_of = {name: room(name, file) for name, file in files.items()}
    between: dict[str, set[str]] = {room: set() for room in room_of.values() if "." in room.removeprefix("closelook.")}
    for name, others in graph.items():
        if room_of[name] in between:
            between[room_of[name]] |= {room_of[other] for other in others} & between.keys()
    return {room: others - {room} for room, others in between.items()}


def listed(groups: Iterable[Iterable[str]]) -> set[str]:
    """The groups in words, which a failing test can compare."""
    return {", ".join(sorted(group)) for group in groups}


def test_modules_import_each_other_in_no_circle_but_those_with_a_reason(graph):
    assert listed(groups(graph)) == listed(MODULES)


def test_rooms_import_each_other_in_no_circle_but_those_with_a_reason(graph):
    assert listed(groups(rooms(graph))) == listed(ROOMS)


def test_what_is_below_jobs_imports_nothing_of_it(graph):
    below = ("lrp_core", "alti", "evaluation", "explaining", "methods", "progress", "terminal", "versions")
    ours = [name for name in graph if name.startswith(tuple(f"closelook.{room}" for room in below))]
    assert not {(name, other) for name in ours for other in graph[name] if other.startswith("closelook.jobs")}


def test_imports_inside_functions_for_types_alone_and_of_packages_close_a_circle():
    code = {
        "a": "def f():\n    from b.c import name",
        "b.c": "if TYPE_CHECKING:\n    import d.e",
        "d": "from a import f",
        "d.e": "import numpy",
        "g": "from g.h import table",
        "g.h": "from g import names",
        "k": "import k.l",
        "k.l": "import k.m",
        "k.m": "import a",
    }
    graph = {name: imports(name, text, code) for name, text in code.items()}
    assert listed(groups(graph)) == {"a, b.c, d", "g, g.h"}
