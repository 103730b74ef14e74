"""Vega, Vega-Lite and Vega-Embed as one script, out of vl-convert: no network, no address to load from."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from optmodels.errors import InputError
from optmodels.io.write import write_text


@cache
def script() -> str:
    """The bundle; the first one made on a machine is kept in the user's cache folder, as making it takes seconds."""
    import vl_convert

    kept = _cache_folder() / f"vega-{version('vl-convert-python')}.js"
    try:
        text = kept.read_text(encoding="utf-8")
        if text.endswith(_END):
            return text
    except (OSError, ValueError):
        pass
    bundled: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    bundled = bundled.replace("</script", "<\\/script") + _END
    with contextlib.suppress(InputError):  # a home that cannot be written costs time, nothing else
        write_text(kept, bundled, overwrite=True)
    return bundled


_END = "\n/* end of bundle */\n"


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "optmodels"
