"""The picture of the landing page is what its script draws today, and the text in its place says the same."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "site" / "picture.py"


def test_picture_is_current() -> None:
    drawn = runpy.run_path(str(SCRIPT))
    written = drawn["PICTURE"].read_text(encoding="utf-8")
    assert written == drawn["picture"](), "python docs/site/picture.py draws it"
    proved, *others = (int(usd.replace(",", "")) for usd in re.findall(r">([0-9,]+)</text>", written))
    said = f"{proved} USD an hour for the proved plan, {min(others)} to {max(others)} for heuristics"
    assert said in (DOCS / "index.md").read_text(encoding="utf-8") and len(others) == len(drawn["METHODS"]) - 1
