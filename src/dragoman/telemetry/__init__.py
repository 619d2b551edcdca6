"""What a process tells about itself: logs, metrics, traces and health."""
