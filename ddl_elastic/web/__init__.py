"""The scheduler's interfaces over HTTP: REST, streams of events, metrics, and pages."""
