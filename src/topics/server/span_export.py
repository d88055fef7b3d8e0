"""Span export: hands the spans of `topics.api.request_spans` to OpenTelemetry's exporter, as its own variables say.

Imported only with TOPICS_OTEL. A program that has set up a tracer provider before keeps its own."""

from __future__ import annotations

import os
from importlib import import_module

from topics.errors import ConfigError


def export_spans() -> None:
    """Raises ConfigError where the packages are missing."""
    try:
        trace = import_module("opentelemetry.trace")
        sdk = import_module("opentelemetry.sdk.trace")
        processors = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigError(
            f"TOPICS_OTEL needs OpenTelemetry ({error.name} is missing): pip install 'topicsdb[otel]', or unset it"
        ) from None
    resource = resources.Resource.create({"service.name": "topics"} if _is_unnamed() else {})
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(processors.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _is_unnamed() -> bool:
    return not os.environ.get("OTEL_SERVICE_NAME")
