"""`attribute`: a step's latency divided among its requests and tenants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake, one_of


@renamed({"model": "latencies"})
def attribute(
    batch: File | Mapping[str, Any], latencies: File, *, fixed: Literal["equal", "tokens"] = "equal",
    safety: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Divide a step's latency among its requests and tenants.

    Args:
        batch: requests of one step, a JSON or YAML file. In Python also a mapping (`latency.attribution.StepBatch`).
        latencies: model file that `calibrate` wrote, of step measurements.
        fixed: divide the constants of a step equally or by tokens.
        safety: inflate by the residual quantile of this level.

    Returns:
        ``latency_s`` of the step, ``requests`` and ``tenants`` with ``share_s`` and, by tokens alone,
        ``vtc_share_s``; ``admit``, of the request that asks to be admitted; ``warnings``. Seconds.

    Raises:
        InputError: a file that is wrong, or a model that gives no finite latency for the batch.
    """
    import numpy as np

    from optmodels.io.read import read_model, validate
    from optmodels.latency import attribution as a
    from optmodels.latency.fit.document import read_latency_model

    one_of("fixed", fixed, ("equal", "tokens"))
    of_a_file = not isinstance(batch, Mapping)
    b = read_model(Path(batch), a.StepBatch) if of_a_file else validate(a.StepBatch, dict(batch))  # type: ignore[arg-type]
    fitted = read_latency_model(Path(latencies))
    attributor = a.Attributor(fitted, fixed=fixed, safety=safety)
    with np.errstate(over="ignore", invalid="ignore"):
        shares = a.attribute(attributor, b.requests, b.tp)
    if not np.isfinite(shares.request_s).all():
        raise InputError(
            Mistake(str(latencies), "targets", None, "coefficients that give finite latencies for this batch")
        )
    tokens, context, decoding = a.arrays(b.requests)
    document: dict[str, Any] = {
        "latency_s": shares.latency_s,
        "requests": [
            {"id": r.id, "tenant": r.tenant, "share_s": float(s), "vtc_share_s": float(v)}
            for r, s, v in zip(b.requests, shares.request_s, shares.vtc_s, strict=True)
        ],
        "tenants": [
            {"tenant": t, "share_s": s, "vtc_share_s": shares.vtc_tenant_s[t]} for t, s in shares.tenant_s.items()
        ],
        "warnings": list(fitted.extrapolation({
            "prefill_tokens": tokens[~decoding], "prefill_context_tokens": context[~decoding],
            "decode_context_tokens": context[decoding], "decode_requests": np.array([float(decoding.sum())]),
            "tp": np.array([float(b.tp)]),
        })),
    }  # fmt: skip
    if b.admit is not None:
        admission = a.admit(attributor, b.requests, b.admit, b.tp)
        document["admit"] = {
            "id": b.admit.id, "added_s": admission.added_s, "share_s": admission.share_s,
            "latency_s": admission.after.latency_s,
        }  # fmt: skip
    return document
