"""How good a synthetic table is, judged against real records that no release may show."""
