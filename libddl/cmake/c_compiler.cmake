# SPDX-License-Identifier: Apache-2.0
# Enables C, or ends with the package to install. The caller's project() names no language.
include(CheckLanguage)
check_language(C)
if(NOT CMAKE_C_COMPILER)
  message(FATAL_ERROR
    "libddl is compiled by a C compiler, and there is none. Install one (Debian, Ubuntu: apt install gcc libc6-dev;"
    " Fedora, RHEL: dnf install gcc), or name it: CC=/path/to/cc")
endif()
enable_language(C)
