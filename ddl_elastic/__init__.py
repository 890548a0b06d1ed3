# SPDX-License-Identifier: Apache-2.0
"""Elastic training: workers join, leave and die, and the bits of the result do not change.

A job has a fixed number of logical workers. Each rank owns some of them and computes their shares
of the batch. The ordered sums of libddl add up the shares in an order that does not depend on which
rank owns which logical worker. The package imports no framework.
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
