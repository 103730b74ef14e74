"""Tests marked slow say why they are: a sentence `Slow: …` in their docstring, or in their file's where all are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def slow_tests() -> dict[str, str]:
    """Docstring of every function with the mark, and of every file that marks all of its tests."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.slow" not in text or path == Path(__file__):
            continue
        tree, name = ast.parse(text), path.relative_to(TESTS).as_posix()
        if re.search(r"^pytestmark = pytest\.mark\.slow", text, flags=re.M):
            found[name] = ast.get_docstring(tree) or ""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "mark.slow" in " ".join(map(ast.unparse, node.decorator_list)):
                found[f"{name}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def test_tests_marked_slow_say_why() -> None:
    found = slow_tests()
    assert len(found) > 20
    assert [name for name, said in found.items() if not re.search(r"^Slow: \w.*\.$", said, flags=re.M)] == []
