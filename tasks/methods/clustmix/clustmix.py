"""ClustMix in its two forms: of tables and item sets, and of images; the kind of data decides."""

from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.method import Synthesizer
from tasks.methods.clustmix.clustmix_settings import ClustMixConfig
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.table_clustmix import TableClustMix


def clustmix(domain: EncodingDomain, config: ClustMixConfig) -> Synthesizer:
    """Bind ClustMix to a public domain, in the form of its kind of data."""
    if domain.image is not None:
        return ImageClustMix(domain, config.variation)
    return TableClustMix(domain)
