"""All catalogue entries of a bundle, by the names of their files."""

from tasks.reporting.catalogue.croissant import CROISSANT_FILE, croissant
from tasks.reporting.catalogue.data_package import DATA_PACKAGE_FILE, data_package
from tasks.reporting.catalogue.deployment import DEPLOYMENT_FILE, deployment_record
from tasks.reporting.catalogue.described import Described
from tasks.reporting.catalogue.health_dcat import HEALTH_DCAT_FILE, health_dcat


def catalogue_files(described: Described) -> dict[str, bytes]:
    """Write the entries: the same bytes for the same release and declarations."""
    return {
        CROISSANT_FILE: croissant(described),
        DATA_PACKAGE_FILE: data_package(described),
        HEALTH_DCAT_FILE: health_dcat(described),
        DEPLOYMENT_FILE: deployment_record(described),
    }
