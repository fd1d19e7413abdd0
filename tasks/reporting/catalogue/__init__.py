"""Catalogue entries of a bundle, in the formats that catalogues read.

Written from the manifest, the public schema and the declarations of the site file: no count of the
source is in any of them but the declared one.
"""
