"""Two things the site does with the pages: mathematics to MathML, and function names to the code they name."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """A formulation's README.md is its page: it lies beside its code, outside docs/."""
    for readme in sorted(ROOT.glob("formulations/*/README.md")):
        files.append(File.generated(config, f"formulations/{readme.parent.name}.md", abs_src_path=str(readme)))
    return files


def _functions(module: str) -> set[str]:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Constraint names in a formulation's page lead to the function; links out of docs/ become plain text.

    Options of a block of commands (``exit=3 head=9``) are for the tests that run it, not for readers.
    """
    path = page.file.src_uri
    markdown = re.sub(r"^(```console) .*$", r"\1", markdown, flags=re.M)
    markdown = re.sub(r"\]\((?:\.\./)+formulations/(\w+)/README\.md", r"](/formulations/\1.md", markdown)
    if path.startswith("formulations/"):
        markdown = re.sub(r"\]\(\.\./(\w+)/README\.md", r"](/formulations/\1.md", markdown)
        markdown = markdown.replace("](../../docs/", "](/")
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!formulations/|papers/|reference/)[^)]*\)", r"\1", markdown)
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./\.\./[^)]*\)", r"\1", markdown)
    if path.startswith("formulations/"):
        module = f"formulations.{Path(path).stem}.model"
        names = _functions(module)
        markdown = re.sub(
            r"(?<!\[)`(\w+)`", lambda m: f"[`{m[1]}`][{module}.{m[1]}]" if m[1] in names else m[0], markdown
        )
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """What arithmatex has marked becomes MathML, which browsers draw without a script."""

    def drawn(match: re.Match[str]) -> str:
        block = match[1] == "div"
        text = html.unescape(match[2]).strip()
        text = text.removeprefix("\\[" if block else "\\(").removesuffix("\\]" if block else "\\)")
        return convert(text, display="block" if block else "inline")

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', drawn, content, flags=re.S)
