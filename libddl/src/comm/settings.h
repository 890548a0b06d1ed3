/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the operations with which a comm's creation ends: the members compare their
 * settings, and commit. */
#ifndef DDL_COMM_SETTINGS_H
#define DDL_COMM_SETTINGS_H

#include "comm/comm.h"

/* Exchange which members share memory, and the settings. This is the first operation of every comm;
 * when it is complete, all members are here. */
ddl_status ddl__exchange_settings(ddl_comm *comm, const ddl__wireup *wireup);

/* Return only when all members have created the comm, so that it fails on all or on none. If
 * another member fails, it reports that, and its health is monitored by now. A pair has no third
 * member that one of them may still wait for, so its exchange of settings is as good. */
ddl_status ddl__creation_commit(ddl_comm *comm, const ddl__until *until);

#endif
