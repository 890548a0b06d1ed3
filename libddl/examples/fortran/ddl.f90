! SPDX-License-Identifier: Apache-2.0
! ddl.f90 - the part of ddl.h that the example calls, as a Fortran module. More of it is declared in
! the same way: handles are type(c_ptr), int64_t is c_int64_t, enums are c_int.
module ddl
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: DDL_OK = 0
  integer(c_int), parameter :: DDL_F32 = 12
  integer(c_int), parameter :: DDL_SUM = 1

  interface
    function ddl_endpoint_create(config, endpoint) bind(c) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: config
      type(c_ptr), intent(out) :: endpoint
      integer(c_int) :: status
    end function

    subroutine ddl_endpoint_destroy(endpoint) bind(c)
      import :: c_ptr
      type(c_ptr), value :: endpoint
    end subroutine

    function ddl_rendezvous(endpoint, url, rank, size, config, comm) bind(c) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: endpoint, url, config
      integer(c_int), value :: rank, size
      type(c_ptr), intent(out) :: comm
      integer(c_int) :: status
    end function

    subroutine ddl_comm_destroy(comm) bind(c)
      import :: c_ptr
      type(c_ptr), value :: comm
    end subroutine

    function ddl_comm_rank(comm) bind(c) result(rank)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int) :: rank
    end function

    function ddl_comm_size(comm) bind(c) result(size)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int) :: size
    end function

    function ddl_allreduce(comm, send, recv, count, dtype, op, options, work) bind(c) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: comm, send, recv, options, work
      integer(c_int64_t), value :: count
      integer(c_int), value :: dtype, op
      integer(c_int) :: status
    end function

    function ddl_broadcast(comm, buffer, count, dtype, root, options, work) bind(c) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: comm, buffer, options, work
      integer(c_int64_t), value :: count
      integer(c_int), value :: dtype, root
      integer(c_int) :: status
    end function

    function c_last_error() bind(c, name='ddl_last_error') result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function

    function c_strlen(text) bind(c, name='strlen') result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

contains

  ! ddl_last_error as a Fortran string.
  function ddl_last_error() result(message)
    character(:), allocatable :: message
    character(kind=c_char), pointer :: letters(:)
    type(c_ptr) :: text
    integer :: i

    text = c_last_error()
    call c_f_pointer(text, letters, [c_strlen(text)])
    allocate (character(size(letters)) :: message)
    do i = 1, size(letters)
      message(i:i) = letters(i)
    end do
  end function

end module ddl
