"""The settings that `App` takes as keywords, for type checkers and editors.

A test compares this file with `Settings`, and `python -m tests.unit.test_app_options` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class AppOptions(TypedDict, total=False):
    """Settings by name; docs/settings.md describes them."""

    host: str
    port: int
    url: str
    cert: str
    key: str
    key_password: str
    ca: str
    ca_optional: bool
    grpc_port: int | None
    grpc_url: str
    grpc_cert: str
    grpc_key: str
    grpc_ca: str
    bindings: Sequence[str]
    versions: Sequence[str]
    forwarded: bool
    hosts: Sequence[str]
    cors: Sequence[str]
    hsts: float
    connections: int
    migrate: bool
    synchronous: Literal["full", "normal"]
    keep: float
    seal_keys: Sequence[str]
    push: bool
    push_keys: Sequence[str]
    push_retries: Sequence[float]
    push_timeout: float
    push_running: int
    push_per_host: int
    egress_allow: Sequence[str]
    duplicates: Literal["off", "authenticated", "always"]
    card_age: int
    card_keys: Sequence[str]
    card_jku: str
    max_connections: int
    max_per_address: int
    max_head: int
    grpc_calls: int
    max_body: int
    max_depth: int
    max_elements: int
    max_in_flight: int
    max_parts: int
    serve_only: bool
    max_running: int
    max_streams: int
    max_tasks: int
    task_age: float
    max_events: int
    max_task: int
    max_output: int
    stream_buffer: int
    threads: int
    max_hops: int
    max_file: int
    file_types: Sequence[str]
    quota_tasks: int
    quota_waiting: int
    quota_streams: int
    rate: float
    rate_address: float
    rate_burst: int
    proxies: Sequence[str]
    header_timeout: float
    body_timeout: float
    blocking_timeout: float
    turn_timeout: float
    cancel_grace: float
    drain: float
    keepalive: float
    stall: float
    lease: float
    poll: float
    watchdog: float
    metrics_port: int | None
    metrics_host: str
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"]
    access_log: bool
    audit: bool
