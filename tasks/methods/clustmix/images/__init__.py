"""ClustMix for images: a released density, public variation, labels of a released teacher."""
