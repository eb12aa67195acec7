"""Debugging of a training on many ranks: differences between ranks, delivered samples, hangs and losses.

Training needs none of it, and `import wdsplit` does not load it. Ranks exchange values over
`torch.distributed`; without it, all that needs no other rank works in one process. `ranks` serves all checks.
Begin with it.
"""

from __future__ import annotations

from wdsplit.debug.audits import AUDITED, Audit, EpochAudit, audit
from wdsplit.debug.diagnosis import diagnose
from wdsplit.debug.losses import Losses, LossLog, read_losses
from wdsplit.debug.model_checks import check_same_gradients, check_same_parameters, param_hash
from wdsplit.debug.ranks import CheckError, barrier, set_seed

__all__ = [
    "AUDITED",
    "Audit",
    "CheckError",
    "EpochAudit",
    "LossLog",
    "Losses",
    "audit",
    "barrier",
    "check_same_gradients",
    "check_same_parameters",
    "diagnose",
    "param_hash",
    "read_losses",
    "set_seed",
]
