"""ImageNet-C's fifteen corruptions and two of texts, at five severities, made as samples are read
(arXiv 1903.12261).
"""

from __future__ import annotations

from hydrasurgeon.data.corruptions.samples import Corrupted, Corruption, Perturbed, corruptions_of
