/* SPDX-License-Identifier: Apache-2.0 */
#include "base/test_points.h"

#ifdef DDL__TEST_POINTS
ddl_status (*ddl__test_hook)(ddl__test_point point, const void *subject);
#endif
