"""Documents about a release: statement, data card, report page, catalogue entries.

Written from manifest, public schema and synthetic rows: no source, workspace or private row.
"""
