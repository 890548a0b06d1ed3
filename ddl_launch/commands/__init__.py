# SPDX-License-Identifier: Apache-2.0
"""The command line tool `ddl`. The entry points `ddl.commands` add commands of other packages."""
