"""The settings that `App` takes as keywords, for type checkers and editors.

A test compares this file with `Settings`; `python -m tests.unit.server.test_app_options` writes it.
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
    bindings: Sequence[str]
    versions: Sequence[str]
    trust_forwarded: bool
    trusted_hosts: Sequence[str]
    trusted_proxies: Sequence[str]
    cors: Sequence[str]
    hsts: float
    retention: float | None
    encryption_keys: Sequence[str]
    idempotency: Literal["off", "authenticated", "always"]
    serve_only: bool
    max_running: int
    threads: int
    turn_timeout: float
    cancel_grace: float
    drain_timeout: float
    lease: float
    poll: float
    push: bool
    push_keys: Sequence[str]
    push_retries: Sequence[float]
    egress_allow: Sequence[str]
    card_keys: Sequence[str]
    card_jku: str
    rate: float
    rate_address: float
    quota_tasks: int
    max_connections: int
    max_body: int
    file_types: Sequence[str]
    max_task_bytes: int
    request_timeout: float
    blocking_timeout: float
    stall: float
    metrics: int | str | None
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"]
    access_log: bool
    audit: bool
    fleet: bool
    console: Literal["auto", "on", "off"]
    console_client_id: str
    agent_page: bool
