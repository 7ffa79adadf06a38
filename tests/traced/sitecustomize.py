"""Records in every process of a run the time at which a function of each project file is first called.

Python imports this module at its start where this folder is on PYTHONPATH. Functions of the packages TRACED_PACKAGES
are compiled with a call of `entered` at their beginning. A profile of `sys.setprofile` would miss the threads that no
Python code starts, in which Ray runs the methods of actors.
"""

import ast
import builtins
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader

FOLDER = os.environ.get("TRACED_FOLDER", "")
PACKAGES = os.environ.get("TRACED_PACKAGES", "").split()
FORWARD = "forward"  # the line of the first forward of a torch module
NAME = "_entered_by_traced_function"

_recorded = set()


def entered(path):
    """Record that a function of the file runs, where it is the first of this file in this process.

    Functions that a module calls while it is imported do not count.
    """
    if path in _recorded or _imports(sys._getframe(1)):
        return
    _record(path)
    torch = sys.modules.get("torch.nn.modules.module")
    if hasattr(torch, "register_module_forward_pre_hook") and "hook" not in _recorded:
        _recorded.add("hook")
        torch.register_module_forward_pre_hook(lambda module, inputs: entered(FORWARD))


def _imports(frame):
    """True where `frame` runs inside an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _record(line):
    _recorded.add(line)
    with open(f"{FOLDER}/{os.getpid()}.log", "a", encoding="utf-8") as file:
        file.write(f"{time.time()} {line}\n")


class _Tracing(ast.NodeTransformer):
    """Lets every function and lambda of a file begin with a call of `entered`."""

    def __init__(self, path):
        self.call = ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(path)], [])

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.body.insert(ast.get_docstring(node) is not None, ast.Expr(self.call))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        self.generic_visit(node)
        both = ast.Tuple([self.call, node.body], ast.Load())
        node.body = ast.Subscript(both, ast.Constant(1), ast.Load())
        return node


class _Loader(SourceFileLoader):
    """Compiles a project file with those calls; neither reads nor writes compiled files."""

    def path_stats(self, path):
        raise OSError("compiled anew")

    def source_to_code(self, data, path, *, _optimization=-1):
        tree = ast.fix_missing_locations(_Tracing(path).visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)


class _Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        spec = PathFinder.find_spec(name, path) if name.partition(".")[0] in PACKAGES else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


if FOLDER:
    setattr(builtins, NAME, entered)
    sys.meta_path.insert(0, _Finder())
