# SPDX-License-Identifier: Apache-2.0
"""What the commands and rooms use: numbers with units, help for the parsers."""
