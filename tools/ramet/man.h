// SPDX-License-Identifier: Apache-2.0
// Manual pages out of the help texts, so that both say the same: roff for man(1), on stdout.
#pragma once

// name: "ramet"; section 1 or 8.
void man_begin(const char *name, unsigned section, const char *summary);
void man_section(const char *title);
void man_subsection(const char *title);
void man_paragraph(const char *text); // filled
void man_text(const char *text);      // line by line, as it stands
