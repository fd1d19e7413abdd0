"""The closed list of methods that a site file can name.

No plug-ins and no import paths: third-party code cannot enter a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from privacy.parameters import Guarantee
from tasks.synthesizers.base import Synthesizer
from tasks.synthesizers.clustmix.config import ClustMixConfig
from tasks.synthesizers.clustmix.synthesizer import ClustMix
from tasks.synthesizers.encoded import EncodingDomain
from tasks.synthesizers.naive_bayes import NaiveBayes, NaiveBayesConfig

MethodConfig = Annotated[ClustMixConfig | NaiveBayesConfig, Field(discriminator="kind")]
"""Settings of any registered method, told apart by ``kind``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """What is public knowledge about a method.

    Parameters
    ----------
    kind
        Name in a site file.
    title
        Name for people.
    guarantee
        What the proven analysis of the method can claim.
    source
        Where the method comes from.
    """

    kind: str
    title: str
    guarantee: Guarantee
    source: str


METHODS: tuple[MethodEntry, ...] = (
    MethodEntry(
        kind="clustmix",
        title="ClustMix",
        guarantee=Guarantee.PROVEN,
        source='Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2',
    ),
    MethodEntry(
        kind="naive_bayes",
        title="Naive-Bayes synthesizer",
        guarantee=Guarantee.PROVEN,
        source="One Gaussian release of all feature-by-label histograms",
    ),
)


def method_entry(kind: str) -> MethodEntry:
    """Entry of a registered method; KeyError names an unknown one."""
    for entry in METHODS:
        if entry.kind == kind:
            return entry
    raise KeyError(f"expected a registered method, found {kind!r}")


def build(config: ClustMixConfig | NaiveBayesConfig, domain: EncodingDomain) -> Synthesizer:
    """Bind a method to a public domain."""
    if isinstance(config, ClustMixConfig):
        return ClustMix(domain, config)
    return NaiveBayes(domain)
