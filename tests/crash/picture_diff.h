// SPDX-License-Identifier: Apache-2.0
// base_diff, held against the bytes of two pictures.
#pragma once

#include "tests/crash/rig.h"

// For two bases of one volume. False, and words, when the answer is wrong; vast ones are passed over.
bool picture_diff_check(const struct rig *rig, const struct picture_base *older,
        const struct picture_base *newer, char *why, size_t why_size);
