// SPDX-License-Identifier: Apache-2.0
// Words for a shell, and base64. Results are malloc'ed; no memory ends the program.
#pragma once

#include <stddef.h>

char *shell_quote_join(const char *const *words); // NULL-terminated; the shell reads the same words back
char *shell_quote_base64(const void *bytes, size_t size);
// Characters that are no base64 are skipped. Zero-terminated beside its size.
char *shell_quote_from_base64(const char *text, size_t *ret_size);
