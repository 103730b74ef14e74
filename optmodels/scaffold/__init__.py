"""A formulation of one's own to start from: the files of `machine_counts` below, under a new name.

Its modules end in ``.py.txt``: they are data here, and belong to no package until they are written.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from optmodels import formulation
from optmodels.errors import InputError, Mistake
from optmodels.io.write import write_text

EXAMPLE = "machine_counts"
MODULE = ".py.txt"
KEPT = ("formulation", "plan", "explanation", "compare", "sweep", "replay")  # `new` and `schema` mean something by them


def write_formulation(name: str, parent: Path = Path()) -> Path:
    """Write the package folder ``parent/name``; returns it.

    Args:
        name: name of the formulation, its package and its folder.
        parent: made if need be.

    Raises:
        InputError: a name that is none or taken, a folder that exists or cannot be written.
    """
    expected = None
    if not re.fullmatch(r"[a-z](_?[a-z0-9])*", name) or len(name) > 60 or keyword.iskeyword(name):
        expected = "the name of a Python package: lower-case letters, digits, single underscores"
    elif name in formulation.names() or name in KEPT:
        expected = f"a name that is not taken, unlike {', '.join([*formulation.names(), *KEPT])}"
    elif (spec := find_spec(name)) is not None and spec.origin is not None:
        expected = f"a name that no installed module has, unlike {spec.origin}"
    if expected is not None:
        raise InputError(Mistake(None, "name", name, expected))
    target = parent / name
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise InputError(Mistake(str(target), "", "an existing file or folder", "a new name")) from None
    except OSError as error:
        raise InputError(Mistake(str(target), "", error.strerror, "a folder that can be written")) from None
    for path, source in _files(files(__name__) / EXAMPLE):
        file = path.replace(EXAMPLE, name).removesuffix(MODULE) + ".py" * path.endswith(MODULE)
        write_text(target / file, source.read_text(encoding="utf-8").replace(EXAMPLE, name))
    return target


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    """Every source file below a folder, by its path in it."""
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, f"{above}{item.name}/")
        elif item.is_file():
            yield above + item.name, item
