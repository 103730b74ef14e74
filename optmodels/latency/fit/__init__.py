"""From measurements to latency models: read, fit, cross-validate, write, predict.

* `measurements`: a user's measurements, columns mapped by name, every bad cell named.
* `loads`: the work in one step, one static batch or one mean step of a closed-loop run, as sums of per-request terms.
* `linear`: non-negative relative least squares with confidence intervals and identifiability.
* `forms`: the model families (LV 1, the additive roofline, LP 18, MS 1, DB), each a set of terms.
* `document`: the model file; prediction, safety levels, extrapolation.
* `calibrate`: fit + cross-validation over whole workloads; `auto`.
"""

from optmodels.latency.fit.calibrate import Calibrated, calibrate_measurements
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.fit.measurements import Measurements, read_measurements

__all__ = ["Calibrated", "LatencyModel", "Measurements", "calibrate_measurements", "read_measurements"]
