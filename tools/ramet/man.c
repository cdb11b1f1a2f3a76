// SPDX-License-Identifier: Apache-2.0
#include "tools/ramet/man.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>

// Of the texts; a page without a date is complained about.
static const char date[] = "2026-11-30";

// A dot or quote at the start of a line would be a command, a dash without a backslash is no minus sign.
static void put(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        bool first = c == text || c[-1] == '\n';
        if (first && (*c == '.' || *c == '\''))
            fputs("\\&", stdout);
        switch (*c) {
        case '\\':
            fputs("\\e", stdout);
            break;
        case '-':
            fputs("\\-", stdout);
            break;
        case '\'':
            fputs("\\(aq", stdout);
            break;
        case '`':
            fputs("\\(ga", stdout);
            break;
        case '~':
            fputs("\\(ti", stdout);
            break;
        case '^':
            fputs("\\(ha", stdout);
            break;
        default:
            putchar(*c);
        }
    }
}

void man_begin(const char *name, unsigned section, const char *summary)
{
    printf(".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made from the help texts of %s.\n.TH ", name);
    for (const char *c = name; *c != '\0'; c++)
        putchar(toupper((unsigned char)*c));
    printf(" %u \"%s\" \"Ramet %s\" \"Ramet\"\n.SH NAME\n%s \\- %s\n", section, date, RAMET_VERSION, name,
            summary);
}

void man_section(const char *title)
{
    printf(".SH \"%s\"\n", title);
}

void man_subsection(const char *title)
{
    fputs(".SS \"", stdout);
    put(title);
    fputs("\"\n", stdout);
}

void man_paragraph(const char *text)
{
    put(text);
    putchar('\n');
}

void man_text(const char *text)
{
    fputs(".nf\n", stdout);
    for (const char *c = text; *c != '\0'; c++) { // an empty line would be one for mandoc's taste, too
        char line[2048];
        unsigned size = 0;
        while (*c != '\0' && *c != '\n' && size + 1 < sizeof line)
            line[size++] = *c++;
        line[size] = '\0';
        if (size == 0)
            fputs(".sp", stdout);
        else
            put(line);
        putchar('\n');
        if (*c == '\0')
            break;
    }
    fputs(".fi\n", stdout);
}
