/* launcher.h - what a rank tells the launcher that has started it on this host. */
#ifndef DDL_COMM_LAUNCHER_H
#define DDL_COMM_LAUNCHER_H

/* Send "RANK WHAT" to the unix socket of this abstract name; NULL: there is none. Waits for
 * nothing, and does not fail: a launcher that does not listen need not know. `what` is a kind of
 * report that ddl_core/launch/reports.py lists. */
void ddl__launcher_report(const char *name, int rank, const char *what);

#endif
