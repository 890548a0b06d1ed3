/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of the kernel, which is compiled at run time. The assembler finds the files, as the
 * compiler finds headers. */
#include "device/nvrtc.h"

#define TEXT(symbol, file)                                                                         \
    __asm__(".section .rodata\n"                                                                   \
            ".globl " #symbol "\n"                                                                 \
            ".hidden " #symbol "\n" #symbol ":\n"                                                  \
            ".incbin \"" file "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".previous\n")

TEXT(ddl__text_of_reduce_cu, "device/reduce.cu");
TEXT(ddl__text_of_reduction_h, "device/reduction.h");
