"""Telemetry: logs, metrics, traces and health."""
