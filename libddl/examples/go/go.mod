module example/allreduce

go 1.19
