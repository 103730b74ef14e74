"""What the packages call is there on Windows and macOS too, and text files are UTF-8 whatever the system's encoding."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {  # of the standard library, on some systems only
    "crypt", "fcntl", "grp", "msvcrt", "nis", "posix", "pty", "pwd", "readline", "resource", "spwd", "syslog",
    "termios", "tty", "winreg", "winsound",
}  # fmt: skip
NAMES = {  # likewise
    "os": {
        "O_DIRECT", "WNOHANG", "chown", "fork", "forkpty", "getpgid", "geteuid", "getgid", "getloadavg", "getuid",
        "killpg", "mkfifo", "nice", "posix_fadvise", "preadv", "pwritev", "sched_getaffinity", "setsid", "statvfs",
        "sysconf", "uname",
    },
    "signal": {
        "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2", "SIG_BLOCK",
        "SIG_SETMASK", "alarm", "pause", "pthread_sigmask", "setitimer", "sigwait",
    },
    "time": {"tzset"},
}  # fmt: skip


def _asks(function: ast.FunctionDef) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "hasattr" for n in ast.walk(function))


def _excused(tree: ast.Module) -> set[ast.AST]:
    """What lies in a try that goes on without a module, or in a function that asks whether a module has the name."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(h.type or node) for h in node.handlers):
            found |= {n for part in (*node.body, *node.handlers) for n in ast.walk(part)}
        if isinstance(node, ast.FunctionDef):
            body = ast.unparse(node) if _asks(node) else ""
            asked = {m for m, names in NAMES.items() if any(f"hasattr({m}, {n!r})" in body for n in names)}
            if not asked:
                continue
            found |= {n for n in ast.walk(node) if isinstance(n, ast.Attribute) and ast.unparse(n.value) in asked}
    return found


def _faults(code: str) -> list[str]:
    tree, found = ast.parse(code), []
    excused = _excused(tree)
    for node in ast.walk(tree):
        if node in excused:
            continue
        match node:
            case ast.Import(names=names):
                found += [f"import {x.name}" for x in names if x.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                found.append(f"from {module} import")
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NAMES.get(module, ()):
                found.append(f"{module}.{name} without hasattr")
            case (
                ast.Call(func=ast.Attribute(attr="read_text"), args=[], keywords=[])
                | ast.Call(func=ast.Attribute(attr="open"), args=[], keywords=[])
                | ast.Call(func=ast.Name(id="open"), args=[_], keywords=[])
            ):
                found.append(f"{ast.unparse(node)} without encoding")
            case (
                ast.Call(func=ast.Name(id="open"), args=[_, ast.Constant(value=str(mode))], keywords=[])
                | ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(value=str(mode))], keywords=[])
            ) if "b" not in mode:
                found.append(f"{ast.unparse(node)} without encoding")
    return found


@pytest.mark.parametrize("package", ["optmodels", "formulations"])
def test_nothing_is_called_that_only_some_systems_have(package):
    paths = {p.relative_to(ROOT).as_posix(): p for p in (ROOT / package).rglob("*.py")}
    faults = {name: _faults(p.read_text(encoding="utf-8")) for name, p in paths.items()}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import fcntl", "from resource import getrusage", "import os\nos.fork()", "def f():\n    signal.alarm(1)",
        "open('x')", "open('x', 'w')", "path.read_text()", "path.open()", "path.open('a')",
    ],
)  # fmt: skip
def test_the_test_has_teeth(code):
    assert len(_faults(code)) == 1


def test_who_asks_first_may_call():
    asks = "def f():\n    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1"
    assert _faults(asks) == []
    assert _faults("try:\n    import fcntl\nexcept ImportError:\n    import msvcrt") == []
    assert _faults("open('x', 'rb'), path.open('w', encoding='utf-8'), path.read_text('utf-8')") == []
