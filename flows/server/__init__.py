"""The parts of an installation that run on this machine: orchestrator, database, workers, pages."""
