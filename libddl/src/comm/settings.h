/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the last operations of a comm's creation: the members compare their settings, and
 * commit. */
#ifndef DDL_COMM_SETTINGS_H
#define DDL_COMM_SETTINGS_H

#include "comm/comm.h"

/* Exchange the settings, and which members share memory. This is the first operation of every comm;
 * when it is complete, all members have connected. */
ddl_status ddl__exchange_settings(ddl_comm *comm, const ddl__wireup *wireup,
                                  const ddl__until *until);

/* Return only after all members have created the comm, so that it fails on all or on none. If
 * another member fails, it reports that, and its health is already monitored. A pair has no third
 * member to wait for, so the exchange of settings is sufficient. */
ddl_status ddl__creation_commit(ddl_comm *comm, const ddl__until *until);

#endif
