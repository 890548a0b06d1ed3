# SPDX-License-Identifier: Apache-2.0
"""Scripts that start a rank, and the modules that they import, which import no others."""
