// SPDX-License-Identifier: Apache-2.0
// What must not stay half-made when this program is ended by a signal (Ctrl-C, TERM, HUP): a list of things
// to undo, the latest first.
//
// Threads: any. Undoing happens on a thread of its own, which then ends the program with 128 + the signal's
// number.
#pragma once

typedef void interrupt_undo(void *context);

void interrupt_start(void); // from now on; before other threads are started. Again: nothing
// NULL when interrupt_start was not called: the signal's usual effect is fine there.
struct interrupt *interrupt_add(interrupt_undo *undo, void *context);
// Between these nothing is undone: a signal waits until what is being made or completed is complete. Who
// releases when one has come does not go on.
void interrupt_hold(void);
void interrupt_release(void);
void interrupt_remove(struct interrupt *interrupt); // it is complete, or was undone. Accepts NULL
