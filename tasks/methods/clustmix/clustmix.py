"""ClustMix in its two forms: of tables and item sets, and of images; the kind of data decides."""

from typing import Literal

from pydantic import Field

from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import Synthesizer
from tasks.measurement.method_settings import MethodSettings


class ClustMixConfig(MethodSettings):
    """Settings of ClustMix. All are public: none may be chosen by looking at the private table."""

    kind: Literal["clustmix"] = "clustmix"
    variation: float = Field(default=1.0, ge=0, le=3)
    """Images: strength of the public warps of what is sampled; 0 for none."""


def clustmix(domain: EncodingDomain, config: ClustMixConfig) -> Synthesizer:
    """Bind ClustMix to a public domain, in the form of its kind of data."""
    # Imported here: a site file needs the settings alone.
    if domain.image is not None:
        from tasks.methods.clustmix.images.image_clustmix import ImageClustMix

        return ImageClustMix(domain, config.variation)
    from tasks.methods.clustmix.table_clustmix import TableClustMix

    return TableClustMix(domain)
