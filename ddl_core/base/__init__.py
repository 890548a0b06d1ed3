# SPDX-License-Identifier: Apache-2.0
"""What all of the package uses: the extension modules, paths, settings."""
