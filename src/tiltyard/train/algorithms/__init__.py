"""The catalogue of policy-gradient algorithms: each is a frozen set of fields and the loss that they describe.

| Name | Paper | Ratio over | Baseline |
|---|---|---|---|
| `GRPO` | Shao et al. 2024, arXiv:2402.03300; clip of DAPO, arXiv:2503.14476 | token | the group |
| `GSPO` | Zheng et al. 2025, arXiv:2507.18071 | sequence | the group |
| `CISPO` | MiniMax 2025, "MiniMax-M1", arXiv:2506.13585 | token, as a bounded weight | the group |
| `LLMPPO` | Schulman et al. 2017, arXiv:1707.06347; GAE, arXiv:1506.02438 | token | a value head |
| `LLMREINFORCE` | Williams 1992; RLOO, Ahmadian et al. 2024, arXiv:2402.14740 | token, as a weight | other members |

What they share is in `options`, the losses themselves are in `tiltyard.train.loss`, and who gets which advantage is in
`tiltyard.train.advantage` and `tiltyard.train.returns`.
"""

from collections.abc import Mapping

from tiltyard.train.algorithms.group_relative import CISPO, GRPO, GSPO
from tiltyard.train.algorithms.options import KLEstimator, KLPlace, Normaliser, OldLogprobs, PolicyGradient
from tiltyard.train.algorithms.return_based import LLMPPO, LLMREINFORCE

Algorithm = GRPO | GSPO | CISPO | LLMPPO | LLMREINFORCE

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "GRPO": GRPO,
    "GSPO": GSPO,
    "CISPO": CISPO,
    "LLMPPO": LLMPPO,
    "LLMREINFORCE": LLMREINFORCE,
}
"""By the name that a manifest gives them."""

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "GRPO",
    "GSPO",
    "LLMPPO",
    "LLMREINFORCE",
    "Algorithm",
    "KLEstimator",
    "KLPlace",
    "Normaliser",
    "OldLogprobs",
    "PolicyGradient",
]
