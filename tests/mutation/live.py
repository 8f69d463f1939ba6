"""Makes a changed module true in a process that has imported it already.

Every function of the module gets the changed code, however it is wrapped or bound: a decorated
hook, a property, a method that an object keeps. No file is written, and nothing is imported anew.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from mutation.changes import Change, changed

_Place = tuple[str, int]


def take_effect(path: Path, source: str, change: Change) -> bool:
    """Make a change true; False where the running code cannot be given it."""
    if change.kind == "own":
        return _set_own(path, source, change)
    before, after = _codes(path, source), _codes(path, changed(source, change))
    done = False
    for function in _functions(str(path)):
        place = function.__code__.co_qualname, function.__code__.co_firstlineno
        old, new = before.get(place, []), after.get(place, [])
        if len(old) != 1 or len(new) != 1 or old[0] == new[0]:
            continue
        if len(function.__code__.co_freevars) != len(new[0].co_freevars):
            return False
        function.__code__ = new[0]
        done = True
    return done


def _codes(path: Path, source: str) -> dict[_Place, list[CodeType]]:
    """Return the code of every function by its place; lambdas may share one."""
    found: defaultdict[_Place, list[CodeType]] = defaultdict(list)
    left = [compile(source, str(path), "exec", dont_inherit=True)]
    while left:
        code = left.pop()
        found[code.co_qualname, code.co_firstlineno].append(code)
        left.extend(one for one in code.co_consts if isinstance(one, CodeType))
    return found


def _functions(path: str) -> Iterator[FunctionType]:
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == path:
            yield one


def _set_own(path: Path, source: str, change: Change) -> bool:
    """Set what a module names, also where it was imported by name."""
    name, old = _named(source, change.line)
    own = [m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(path)]
    if not own or vars(own[0]).get(name) != old:
        return False
    new, held = _named(changed(source, change), change.line)[1], vars(own[0])[name]
    for module in list(sys.modules.values()):
        values = getattr(module, "__dict__", {})
        if values.get(name) is held:
            values[name] = new
    return True


def _named(source: str, line: int) -> tuple[str, object]:
    """Return the name and the value of the assignment that a line of a module is in."""
    for one in ast.parse(source).body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.lineno <= line <= _end(one):
            target = one.targets[0] if isinstance(one, ast.Assign) else one.target
            assert isinstance(target, ast.Name)
            assert one.value is not None
            return target.id, ast.literal_eval(one.value)
    raise LookupError(line)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
