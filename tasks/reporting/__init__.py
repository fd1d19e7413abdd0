"""Documents about a release: statement, data card, report page, catalogue entries.

They are written from the manifest, the public schema and the synthetic rows. No function here
receives a source, a workspace or a private row.
"""
