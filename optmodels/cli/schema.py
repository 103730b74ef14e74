"""`schema`: the JSON Schema of input files and documents."""

from __future__ import annotations

import json
import sys
from typing import Any

import optmodels
from optmodels.cli.options import verb


@verb("name")
def schema(given: dict[str, Any]) -> int:
    """Print the JSON Schema of an input file or document. Documents are problem files, input of `evaluate`, results."""
    found = optmodels.schema(**given)
    sys.stdout.write(found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0
