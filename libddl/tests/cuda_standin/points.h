/* SPDX-License-Identifier: Apache-2.0 */
/* points.h - lists of points, and the functions for points that only streams use. All with the lock
 * held. */
#ifndef CUDA_STANDIN_POINTS_H
#define CUDA_STANDIN_POINTS_H

#include "standin.h"

/* Return a point that is not done, with one reference; or NULL. */
point *standin_point_create(void);
/* Mark it done, and wake its waiters. The edge must be released before. */
void standin_point_finish(point *p);

/* Add a point, unless it is NULL, and retain it. Return false if out of memory. */
bool standin_points_add(points *list, point *p);
void standin_points_await(const points *list);
void standin_points_clear(points *list);

#endif
