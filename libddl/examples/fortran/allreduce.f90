! SPDX-License-Identifier: Apache-2.0
! allreduce.f90 - sum a vector over all ranks, and receive a number from rank 0.
!
!     gfortran ddl.f90 allreduce.f90 $(pkg-config --libs libddl) -o allreduce
!     ddlrun -n 2 ./allreduce
program allreduce
  use ddl
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none

  type(c_ptr) :: endpoint = c_null_ptr, comm = c_null_ptr
  real(c_float), target :: x(1000), word
  integer(c_int) :: rank, size
  logical :: right

  call check(ddl_endpoint_create(c_null_ptr, endpoint))
  ! The ranks that a launcher such as ddlrun has started; without one, this one alone.
  call check(ddl_rendezvous(endpoint, c_null_ptr, -1_c_int, 0_c_int, c_null_ptr, comm))
  rank = ddl_comm_rank(comm)
  size = ddl_comm_size(comm)

  x = real(rank + 1, c_float)
  word = merge(42.0_c_float, 0.0_c_float, rank == 0)
  ! In place and blocking: the same address twice, and no work at the end.
  call check(ddl_allreduce(comm, c_loc(x), c_loc(x), 1000_c_int64_t, DDL_F32, DDL_SUM, &
                           c_null_ptr, c_null_ptr))
  call check(ddl_broadcast(comm, c_loc(word), 1_c_int64_t, DDL_F32, 0_c_int, &
                           c_null_ptr, c_null_ptr))

  right = nint(word) == 42 .and. all(nint(x) == size * (size + 1) / 2)
  print '(a,i0,a,i0,a,i0,a,i0,a)', 'rank ', rank, ' of ', size, ': every sum is ', nint(x(1)), &
    ', rank 0 says ', nint(word), merge(', right', ', wrong', right)
  call close
  if (.not. right) stop 1

contains

  subroutine check(status)
    integer(c_int), value :: status

    if (status == DDL_OK) return
    write (error_unit, '(a)') ddl_last_error()
    call close
    stop 1
  end subroutine

  subroutine close
    call ddl_comm_destroy(comm)
    call ddl_endpoint_destroy(endpoint)
  end subroutine

end program allreduce
