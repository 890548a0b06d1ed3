# SPDX-License-Identifier: Apache-2.0
"""The comparison of the runs of `ddl elastic verify`, and the search for causes of differences."""
