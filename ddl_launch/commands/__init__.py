# SPDX-License-Identifier: Apache-2.0
"""The command line tool `ddl`; further commands come by the entry points `ddl.commands`."""
