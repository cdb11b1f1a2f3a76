// SPDX-License-Identifier: Apache-2.0
// The tokens of exposed ports in what a visitor sends: found wherever they may stand (query, cookies), and
// taken out, so that a guest's server never gets to see them. Names are compared as the strictest and the
// laxest reader would: in either case, percent-coded or not; whatever could be ours is taken out, whether its
// value is a token or not.
//
// Threads: any. Texts are changed in place and only ever get shorter, or stay as long.
#pragma once

#include "vmglue/urls.h"

enum { PROXY_TOKENS_MAX = 8 }; // more are taken out, and not tried

struct proxy_tokens {
    char list[PROXY_TOKENS_MAX][URLS_TOKEN_SIZE];
    unsigned count;
};

void proxy_token_add(struct proxy_tokens *tokens, const char *text, size_t size); // when it is a token
// Takes out of a query (what follows the "?") every parameter called preview_token. tokens: gets their
// values; may be NULL.
void proxy_token_cut_query(char *query, struct proxy_tokens *tokens);
// The same for cookies, of a Cookie field's value.
void proxy_token_cut_cookies(char *value, struct proxy_tokens *tokens);
// The same for the query of an address, such as a Referer's; what is left of it is whole.
void proxy_token_cut_address(char *address, struct proxy_tokens *tokens);
// Whether a Set-Cookie field sets ours.
bool proxy_token_is_cookie(const char *value);
// Writes over every place where one of the tokens stands, in either case.
void proxy_token_hide(char *text, const struct proxy_tokens *tokens);
// Whether one of our keys (keys.h), or a token that stands for one, stands anywhere in it.
bool proxy_token_holds_key(const char *text);
