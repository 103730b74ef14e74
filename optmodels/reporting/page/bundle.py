"""Vega, Vega-Lite and Vega-Embed as one script, out of vl-convert: no network, no address to load from."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from optmodels.errors import InputError
from optmodels.io.write import write_bytes


@cache
def packed() -> tuple[str, str]:
    """The bundle as a page carries it, gzip in base64 (less than half as long), and its text.

    The first one made on a machine is kept in the user's cache folder, as making it takes seconds.
    """
    kept = _cache_folder() / f"vega-{version('vl-convert-python')}.js.gz"
    try:
        data = kept.read_bytes()
        text = gzip.decompress(data).decode("utf-8")
    except (OSError, ValueError, EOFError, zlib.error):
        text = ""
    if not text.endswith(_END):
        import vl_convert

        text = f"{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}{_END}"
        data = gzip.compress(text.encode("utf-8"), mtime=0)
        with contextlib.suppress(InputError):  # a home that cannot be written costs time, nothing else
            write_bytes(kept, data, overwrite=True)
    return base64.b64encode(data).decode(), text


_END = "\n/* end of bundle */\n"


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "optmodels"
