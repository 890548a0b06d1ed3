# SPDX-License-Identifier: Apache-2.0
# A package for Debian and Ubuntu: `cpack --config build/CPackConfig.cmake`.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libddl-dev)
set(CPACK_PACKAGE_CONTACT "the libddl authors")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # by dpkg-shlibdeps, of the package dpkg-dev
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libssl3 | libssl3t64") # its libcrypto, for a job's secret
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/../LICENSE) # not in a copy of this folder alone
    set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/../LICENSE)
endif()
include(CPack)
