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

# The same sources give the same library in every folder: none of its bytes depends on a path.
include(CheckCCompilerFlag)
check_c_compiler_flag(-ffile-prefix-map=a=b DDL_HAS_PREFIX_MAP)
if(DDL_HAS_PREFIX_MAP)
  get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
  set(prefix_maps -ffile-prefix-map=${root}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)
  add_compile_options(${prefix_maps})
  add_link_options(${prefix_maps})
endif()
