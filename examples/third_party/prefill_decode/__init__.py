"""Prefill and decode on separate machines: an example of a package that extends optmodels."""
