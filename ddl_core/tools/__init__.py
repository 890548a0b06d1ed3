"""The command line tool `ddl`: plans and simulations of described clusters."""
