// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the word of a list that a misspelt one is nearest to.
#pragma once

// NULL when none is near. words is NULL-terminated; the result is one of them.
const char *suggest_nearest(const char *word, const char *const *words);
