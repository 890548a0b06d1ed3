# SPDX-License-Identifier: Apache-2.0
"""The scheduler's interfaces over HTTP: REST, streams of events, metrics, and pages."""
