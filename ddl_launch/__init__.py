"""Jobs on one machine or many: `ddlrun`, the command `ddl`, and laboratories of hosts.

It uses ddl_core, which does not know it.
"""
