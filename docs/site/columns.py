"""Sets, parameters and variables stand in columns in a module's docstring; keep them so on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Columns(griffe.Extension):
    """An indented block below a line that ends no sentence becomes preformatted text."""

    def on_module_instance(self, *, mod: griffe.Module, **_: Any) -> None:
        """Set a blank line before such blocks, which makes Markdown keep them."""
        if mod.docstring is not None:
            mod.docstring.value = re.sub(r"(?m)^(\w[^\n]*[^:\n])\n(?=    \S)", r"\1\n\n", mod.docstring.value)
