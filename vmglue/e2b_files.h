// SPDX-License-Identifier: Apache-2.0
// What e2b_files.c and e2b_watch.c share. Not for anybody else.
#pragma once

enum { E2B_PATH_CAPACITY = 4096 };

// Paths in answers are whole: below /home/user unless they begin with a slash.
void e2b_files_whole_path(const char *path, char ret_path[E2B_PATH_CAPACITY]);
