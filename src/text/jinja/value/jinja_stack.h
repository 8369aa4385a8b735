/* jinja_stack.h: how much of the C stack a recursion has used. Recursion over the content of files is bounded by bytes of stack,
 * not by counts of levels: threads of musl have 128 KiB, and the frames of a level differ by compiler and by sanitizer.
 * SPDX-License-Identifier: MIT */
#ifndef SG_JINJA_STACK_H
#define SG_JINJA_STACK_H

#include <stdint.h>

/* Bytes that one recursion may use. Sanitizers make frames up to ten times as large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SG_STACK_BYTES = 1 << 20 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
enum { SG_STACK_BYTES = 1 << 20 };
#else
enum { SG_STACK_BYTES = 64 << 10 };
#endif
#else
enum { SG_STACK_BYTES = 64 << 10 };
#endif

/* The address of the caller's frame: kept at the start of a recursion. */
static inline uintptr_t sg_stack_here(void) { return (uintptr_t)__builtin_frame_address(0); }
/* 1: the recursion that started at `base` must stop. */
static inline int sg_stack_used_up(uintptr_t base)
{
    uintptr_t here = sg_stack_here();
    return (here < base ? base - here : here - base) > SG_STACK_BYTES;
}

#endif
