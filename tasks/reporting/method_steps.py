"""What each method does, in the words of the report: title and description of its steps."""

from __future__ import annotations

from collections.abc import Mapping

from privacy.parameters import Analysis
from storage.releases.manifest import Manifest

_ENCODE = {
    "Encode": "Each record is coded by itself, by public bounds, bins and levels. Values outside "
    "the bounds are clipped; a patient's records share a weight of one."
}
_DECODE = {
    "Decode and check": "Codes become values inside their bins. The gate below reads the synthetic "
    "rows only."
}
_STEPS: Mapping[str, Mapping[str, str]] = {
    "clustmix": {
        "Approximate": "Noisy counts of codes by label and noisy tables of pairs of columns. A "
        "mixture of simple distributions is fitted to them. The fit reads no record, however long "
        "it runs.",
        "Adapt": "A model of the label is fitted to the noisy counts and corrected by noisy sums "
        "of its own errors.",
        "Anonymise": "Rows are drawn from the mixture and take their labels from the model. Images "
        "come from noisy clusters instead, with a model fitted to noisy moments.",
    },
    "naive_bayes": {
        "Measure": "Noisy counts of each column, separately for each label.",
        "Sample": "Rows are drawn from the noisy counts: a label first, then each column alone.",
    },
    "dp_cda": {
        "Mix": "Records of one label are averaged, many at a time, in disjoint groups or in "
        "secret random samples of the patients, and noise is added to each mean.",
        "Sample": "Rows are drawn from noisy means of their label: levels by their shares, which "
        "are spread as single records are; numbers are the nearest valid ones.",
    },
    "dpgm": {
        "Cluster": "Noisy rounds of k-means on random Fourier features place cluster centres.",
        "Train": "A network for each cluster is trained by noisy gradients of secret random "
        "samples of the patients.",
        "Sample": "Rows are drawn from the networks, as many from each as its noisy size says.",
    },
    "dp_kmeans": {
        "Cluster": "Noisy rounds of k-means place cluster centres.",
        "Measure": "Noisy counts of each column in each cluster and label.",
        "Sample": "Rows are drawn from the noisy counts of a cluster and label.",
    },
    "dp_merf": {
        "Embed": "The mean of random Fourier features of each label, with noise.",
        "Train": "A generator is fitted to the noisy mean. The fit reads no record.",
        "Sample": "Rows are drawn from the generator.",
    },
    "mwem": {
        "Choose and measure": "In each round a query that is answered badly is chosen at random, "
        "its answer is taken with noise, and the distribution is moved towards it.",
        "Sample": "Rows are drawn from the mean of the distributions.",
    },
    "dp_mix": {
        "Mix": "Records of all labels are averaged in secret random samples of the patients, and "
        "noise is added to features and labels.",
        "Sample": "Rows are drawn from noisy means: levels by their shares, which are spread as "
        "single records are; numbers are the nearest valid ones.",
    },
    "local_perturbation": {
        "Perturb": "Records fall into public slots, and noise is added to each slot.",
        "Sample": "Rows are noisy slots, each brought to the nearest valid record.",
    },
    "random_projection": {
        "Project": "Records are projected to few dimensions, summed in slots, with noise.",
        "Sample": "Rows are projected back and brought to the nearest valid record.",
    },
}
_OTHER_STEPS = {
    "Measure and synthesise": "The statistics in the table below are released with noise. Rows are "
    "made from them."
}
_PUBLISHED = {
    "Published algorithm": "The algorithm as its paper prints it, including steps that read "
    "records without noise and that the published analysis leaves out."
}


def steps(manifest: Manifest) -> Mapping[str, str]:
    """Return the description of each step that made the release, by title and in order."""
    if manifest.analysis == Analysis.PAPER:
        return {**_PUBLISHED, **_DECODE}
    return {**_ENCODE, **_STEPS.get(manifest.method.name, _OTHER_STEPS), **_DECODE}
