"""What a person reads about a release: statement, data card, report page.

Everything here is written from the manifest, the public schema and the synthetic rows. Nothing
in this package is given a source, a workspace or a private row.
"""
