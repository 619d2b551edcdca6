"""Checks of agent cards against the specification."""
