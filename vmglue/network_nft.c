// SPDX-License-Identifier: Apache-2.0
#include "vmglue/network_nft.h"

#include <errno.h>
#include <nftables/libnftables.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
enum { LOW_FIRST = 64, LOW_LAST = 127 }; // descriptors

static struct nft_ctx *host; // protected by turn; made at the first use, for as long as the process lives

// The library answers with words alone.
static int code_of(const char *words)
{
    static const struct {
        const char *words;
        int code;
    } known[] = {{"Operation not permitted", -EPERM}, {"Permission denied", -EPERM},
            {"No such file or directory", -ENOENT}, {"Operation not supported", -EOPNOTSUPP},
            {"Protocol not supported", -EOPNOTSUPP}, {"netlink: Error", -EOPNOTSUPP}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(words, known[i].words) != NULL)
            return known[i].code;
    return -EINVAL;
}

static int fail(struct nft_ctx *nft, struct error *err)
{
    const char *words = nft_ctx_get_error_buffer(nft);
    if (words == NULL || words[0] == '\0')
        return error_set(err, -EINVAL, "nftables refused a rule without saying why");
    return error_set(err, code_of(words), "nftables refused a rule: %.*s", (int)strcspn(words, "\n"), words);
}

static void each_line(const char *text, void (*each)(void *context, const char *line), void *context)
{
    char line[512];
    while (text != NULL && *text != '\0') {
        size_t size = strcspn(text, "\n"), kept = size < sizeof line ? size : sizeof line - 1;
        memcpy(line, text, kept);
        line[kept] = '\0';
        each(context, line);
        text += size + (text[size] == '\n');
    }
}

static struct nft_ctx *make_context(void)
{
    struct nft_ctx *nft = nft_ctx_new(NFT_CTX_DEFAULT);
    if (nft == NULL || (nft_ctx_buffer_error(nft) == 0 && nft_ctx_buffer_output(nft) == 0))
        return nft;
    nft_ctx_free(nft);
    return NULL;
}

static int run(struct nft_ctx *nft, const char *text, struct error *err)
{
    if (nft == NULL)
        return error_set(err, -ENOMEM, "nftables cannot be used: no memory");
    return nft_run_cmd_from_buffer(nft, text) != 0 ? fail(nft, err) : 0;
}

// Closing the library's socket waits until what was deleted through it is gone, 10 ms and more: so it stays
// open.
int network_nft_list(
        const char *text, void (*each)(void *context, const char *line), void *context, struct error *err)
{
    pthread_mutex_lock(&turn);
    if (host == NULL)
        host = make_context();
    int result = run(host, text, err);
    if (result == 0 && each != NULL)
        each_line(nft_ctx_get_output_buffer(host), each, context);
    pthread_mutex_unlock(&turn);
    return result;
}

struct run_here {
    const char *text;
    struct error *err;
    int result;
};

// libnftables waits with select(), which ends a process whose descriptor is 1024 or higher, and a daemon with
// thousands of connections has none below. So it gets a table of its own, in which some are free.
static void *run_with_low_descriptors(void *context)
{
    struct run_here *here = context;
    if (unshare(CLONE_FILES) < 0 || close_range(LOW_FIRST, LOW_LAST, 0) < 0) {
        here->result = error_set(
                here->err, -errno, "nftables cannot be used: no table of descriptors: %s", strerror(errno));
        return NULL;
    }
    struct nft_ctx *nft = make_context();
    here->result = run(nft, here->text, here->err);
    if (nft != NULL)
        nft_ctx_free(nft);
    return NULL;
}

#if defined(__SANITIZE_THREAD__)
// The thread sanitizer knows one table: it takes a descriptor of that one for the same number of everybody
// else's.
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:run_with_low_descriptors\n";
}
#endif

int network_nft_run_here(const char *text, struct error *err)
{
    struct run_here here = {.text = text, .err = err};
    pthread_t thread; // in the caller's network namespace, as all that a thread starts
    pthread_mutex_lock(&turn);
    int r = pthread_create(&thread, NULL, run_with_low_descriptors, &here);
    if (r == 0)
        pthread_join(thread, NULL);
    else
        here.result = error_set(err, -r, "nftables cannot be used: no thread: %s", strerror(r));
    pthread_mutex_unlock(&turn);
    return here.result;
}

int network_nft_run(const char *text, struct error *err)
{
    return network_nft_list(text, NULL, NULL, err);
}
