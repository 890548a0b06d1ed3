# SPDX-License-Identifier: Apache-2.0
"""Elastic training: workers come, go and die, and the result keeps its bits.

A job has a fixed number of logical workers. Each rank owns some of them, computes their shares of
the batch, and the ordered sums of libddl add these up in an order that does not depend on who owns
what. The package imports no framework.
"""

from ddl_elastic.coordinator.coordinator import JobFailed
from ddl_elastic.job import Job
from ddl_elastic.shares.assign import Assignment, assign, legal_sizes
from ddl_elastic.shares.loading import LoadingError
from ddl_elastic.shares.order import parts
from ddl_elastic.step.admission import AdmissionError

__all__ = [
    "AdmissionError",
    "Assignment",
    "Job",
    "JobFailed",
    "LoadingError",
    "assign",
    "legal_sizes",
    "parts",
]
