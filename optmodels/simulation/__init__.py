"""Discrete-event simulation of plans on request traces."""
