"""The picture of the landing page is what its script draws today."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "site" / "picture.py"


def test_picture_is_current() -> None:
    drawn = runpy.run_path(str(SCRIPT))
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["picture"](), "python docs/site/picture.py draws it"
