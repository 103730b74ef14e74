"""The uncalibrated roofline of a GPU and an LLM: scaled by LP(18), and compared with the other forms.

The same curves that plans are made of (`latency.strategies`, no offloading), so that a slope and intercept fitted
here apply to them unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optmodels import catalog
from optmodels.arrays import Array
from optmodels.catalog.types import Architecture, Gpu
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.fit.loads import Values
from optmodels.latency.strategies import BatchModel, Hardware, Variant
from optmodels.latency.work import KvPrecision, Precision, layer_work, peak_flops


@dataclass(frozen=True)
class Reference:
    """A GPU and an LLM of the catalogue at a precision."""

    gpu: str
    llm: str
    precision: Precision = "fp16"
    kv_precision: KvPrecision = "fp16"
    variant: Variant = "roofline"

    def __post_init__(self) -> None:
        wrong = Mistakes()
        for name, known, what in ((self.gpu, catalog.gpus(), "gpu"), (self.llm, catalog.llms(), "llm")):
            if name not in known:
                wrong.add(what, name, f"a {what} of the catalogue: {', '.join(sorted(known))}")
        wrong.raise_any()
        if self.peak_flops is None:
            raise InputError(Mistake(None, "gpu", self.gpu, f"a GPU with a published {self.precision} peak"))

    @property
    def device(self) -> Gpu:
        """The catalogue's GPU."""
        return catalog.gpus()[self.gpu]

    @property
    def architecture(self) -> Architecture:
        """The catalogue's LLM."""
        return catalog.llms()[self.llm]

    @property
    def peak_flops(self) -> float | None:
        """Dense FLOP/s at the precision of the weights."""
        return peak_flops(self.device, self.precision)

    def latencies(self, v: Values) -> tuple[Array, Array]:
        """Predicted TTFT and mean time between tokens of static batches, seconds, shape (n,).

        Args:
            v: `input_tokens`, `output_tokens`, `tp` and `batch` or `concurrency`, shape (n,) each.
        """
        B = v["batch"] if "batch" in v else v["concurrency"]
        work = layer_work(self.architecture, self.precision, self.kv_precision)
        gpu, flops = self.device, float(self.peak_flops or np.nan)
        ttft, tbt = np.zeros(len(B)), np.zeros(len(B))
        lengths = np.stack([v["input_tokens"], v["output_tokens"]], axis=1)
        for pair in np.unique(lengths, axis=0):
            rows = np.flatnonzero((lengths == pair).all(axis=1))
            hw = Hardware.of_gpu(gpu, flops, v["tp"][rows])
            model = BatchModel(work, max(1, round(float(pair[0]))), max(2, round(float(pair[1]))), self.variant)
            curves = model.resident(hw, B[rows], np.ones(len(rows)))
            ttft[rows], tbt[rows], _ = curves.metrics(np.zeros(len(rows)))
        return ttft, tbt
