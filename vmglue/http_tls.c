// SPDX-License-Identifier: Apache-2.0
#include "vmglue/http_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHAIN_MAX = 16, FILE_MAX_BYTES = 1 << 20 };

// Handshakes use one without a lock, so those that were replaced stay until the end; they are small and few.
struct identity {
    struct identity *before;
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned chain_length;
    gnutls_privkey_t key;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct identity *current; // protected by lock

static int read_file(const char *path, const char *what, gnutls_datum_t *ret_bytes, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned char *bytes = fd < 0 ? NULL : malloc(FILE_MAX_BYTES);
    ssize_t got = bytes == NULL ? -1 : read(fd, bytes, FILE_MAX_BYTES);
    int code = got > 0 && got < FILE_MAX_BYTES ? 0 : got < 0 && errno != 0 ? -errno : -EINVAL;
    if (fd >= 0)
        close(fd);
    if (code < 0) {
        free(bytes);
        return error_set(err, code, "the %s %s cannot be read: %s", what, path,
                code == -EINVAL ? "it is empty or far too large" : strerror(-code));
    }
    *ret_bytes = (gnutls_datum_t){bytes, (unsigned)got};
    return 0;
}

static void wipe(gnutls_datum_t *bytes)
{
    if (bytes->data != NULL)
        explicit_bzero(bytes->data, bytes->size);
    free(bytes->data);
}

static int check_dates(const gnutls_datum_t *certificate, const char *file, struct error *err)
{
    gnutls_x509_crt_t chain[CHAIN_MAX];
    unsigned length = CHAIN_MAX;
    int r = gnutls_x509_crt_list_import(chain, &length, certificate, GNUTLS_X509_FMT_PEM, 0);
    if (r < 0)
        return error_set(err, -EINVAL, "the certificate %s is no good: %s", file, gnutls_strerror(r));
    time_t now = time(NULL), until = gnutls_x509_crt_get_expiration_time(chain[0]);
    for (unsigned i = 0; i < length; i++)
        gnutls_x509_crt_deinit(chain[i]);
    if (until != (time_t)-1 && until < now)
        return error_set(err, -EINVAL, "the certificate %s has expired; give one that is valid", file);
    return 0;
}

// Whether clients could be served with the two.
static int check_pair(const gnutls_datum_t *certificate, const gnutls_datum_t *key,
        const char *certificate_file, const char *key_file, struct error *err)
{
    gnutls_certificate_credentials_t credentials;
    int r = check_dates(certificate, certificate_file, err);
    if (r < 0)
        return r;
    r = gnutls_certificate_allocate_credentials(&credentials);
    if (r < 0)
        return error_set(err, -ENOMEM, "no memory for the certificate");
    r = gnutls_certificate_set_x509_key_mem2(credentials, certificate, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_certificate_free_credentials(credentials);
    if (r == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return error_set(
                err, -EINVAL, "the key %s does not belong to the certificate %s", key_file, certificate_file);
    if (r == GNUTLS_E_DECRYPTION_FAILED || r == GNUTLS_E_PK_INVALID_PUBKEY || r == GNUTLS_E_PKCS1_WRONG_PAD)
        return error_set(err, -EINVAL, "the key %s is encrypted; give one without a password", key_file);
    if (r < 0)
        return error_set(err, -EINVAL, "the key %s, or the certificate %s, is no good: %s", key_file,
                certificate_file, gnutls_strerror(r));
    return 0;
}

static void free_identity(struct identity *identity)
{
    for (unsigned i = 0; i < identity->chain_length; i++)
        gnutls_pcert_deinit(&identity->chain[i]);
    if (identity->key != NULL)
        gnutls_privkey_deinit(identity->key);
    free(identity);
}

static int import(const gnutls_datum_t *certificate, const gnutls_datum_t *key, struct identity *identity)
{
    unsigned length = CHAIN_MAX;
    int r = gnutls_pcert_list_import_x509_raw(identity->chain, &length, certificate, GNUTLS_X509_FMT_PEM,
            GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    if (r < 0)
        return r;
    identity->chain_length = length;
    r = gnutls_privkey_init(&identity->key);
    if (r >= 0)
        r = gnutls_privkey_import_x509_raw(identity->key, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    return r;
}

int http_tls_load(const char *certificate_file, const char *key_file, struct error *err)
{
    gnutls_datum_t certificate = {NULL, 0}, key = {NULL, 0};
    struct identity *identity = calloc(1, sizeof *identity);
    int r = identity == NULL ? error_set(err, -ENOMEM, "no memory") : 0;
    if (r == 0)
        r = read_file(certificate_file, "certificate", &certificate, err);
    if (r == 0)
        r = read_file(key_file, "key", &key, err);
    if (r == 0)
        r = check_pair(&certificate, &key, certificate_file, key_file, err);
    if (r == 0) {
        int wrong = import(&certificate, &key, identity);
        if (wrong < 0)
            r = error_set(err, -EINVAL, "the certificate %s is no good: %s", certificate_file,
                    gnutls_strerror(wrong));
    }
    wipe(&certificate);
    wipe(&key);
    if (r < 0) {
        if (identity != NULL)
            free_identity(identity);
        return r;
    }
    pthread_mutex_lock(&lock);
    identity->before = current;
    current = identity;
    pthread_mutex_unlock(&lock);
    return 0;
}

void http_tls_unload(void)
{
    pthread_mutex_lock(&lock);
    while (current != NULL) {
        struct identity *before = current->before;
        free_identity(current);
        current = before;
    }
    pthread_mutex_unlock(&lock);
}

static int retrieve(gnutls_session_t session, const gnutls_datum_t *authorities, int authority_count,
        const gnutls_pk_algorithm_t *algorithms, int algorithm_count, gnutls_pcert_st **ret_chain,
        unsigned *ret_length, gnutls_privkey_t *ret_key)
{
    pthread_mutex_lock(&lock);
    struct identity *identity = current;
    pthread_mutex_unlock(&lock);
    if (identity == NULL)
        return -1;
    *ret_chain = identity->chain;
    *ret_length = identity->chain_length;
    *ret_key = identity->key;
    return 0;
}

void *http_tls_callback(void)
{
    gnutls_certificate_retrieve_function2 *callback = retrieve;
    void *pointer;
    memcpy(&pointer, &callback, sizeof pointer); // POSIX lets functions pass as such
    return pointer;
}

ssize_t http_tls_send(void *session, const void *bytes, size_t size)
{
    ssize_t sent = gnutls_record_send(session, bytes, size);
    return sent >= 0 ? sent : sent == GNUTLS_E_AGAIN || sent == GNUTLS_E_INTERRUPTED ? -EAGAIN : -EPIPE;
}
