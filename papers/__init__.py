"""The papers' tables and figures recomputed; part of the repository, not of the package that is installed."""
