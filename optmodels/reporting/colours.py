"""Colours of every picture, distinguishable for the colour-blind (Tol's bright and muted schemes)."""

from __future__ import annotations

# One colour per strategy family, the same in every picture.
FAMILY_COLOURS = {
    "high_end": "#4477aa",
    "multi_pass": "#66ccee",
    "kvo_ram": "#228833",
    "kvo_disk": "#999933",
    "ao": "#ee6677",
    "ao_parallel": "#cc3311",
    "ao_shared": "#aa3377",
    None: "#dddddd",
}

SERIES = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#332288", "#ddaa33", "#117733", "#882255",
    "#44aa99", "#cc6677",
)  # fmt: skip
REST = "#bbbbbb"  # whatever is summed up as "others"
STRONG, ALARM = "#4477aa", "#bb3322"
