/* launcher.h - reports of a rank to the launcher that has started it on this host. */
#ifndef DDL_COMM_LAUNCHER_H
#define DDL_COMM_LAUNCHER_H

/* Send "RANK WHAT" to the launcher's unix socket, which has this abstract name; NULL: no launcher.
 * Does not block, and ignores errors. ddl_launch/reports.py lists the values of `what`. */
void ddl__launcher_report(const char *name, int rank, const char *what);

#endif
