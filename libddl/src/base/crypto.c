/* The functions that are used have been the same since OpenSSL 1.1.1, so their prototypes are
 * declared here. */
#include "base/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct evp_md evp_md; /* EVP_MD */

struct ddl__crypto {
    void *library;
    int (*init)(uint64_t, const void *);
    const evp_md *(*sha256)(void);
    unsigned char *(*hmac)(const evp_md *, const void *, int, const unsigned char *, size_t,
                           unsigned char *, unsigned int *);
};

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"OPENSSL_init_crypto", offsetof(ddl__crypto, init)},
    {"EVP_sha256", offsetof(ddl__crypto, sha256)},
    {"HMAC", offsetof(ddl__crypto, hmac)},
};

/* OpenSSL 3, or 1.1.1 on systems that still have it. */
static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

static void *load(void)
{
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

ddl__crypto *ddl__crypto_open(void)
{
    /* OPENSSL_INIT_NO_ATEXIT: threads of ours may use it until the process is gone. */
    static const uint64_t no_atexit = 0x00080000;
    ddl__crypto *crypto = calloc(1, sizeof *crypto);
    if (!crypto) {
        ddl__fail(DDL_ENOMEM, "no memory for libcrypto");
        return NULL;
    }
    crypto->library = load();
    const char *missing = crypto->library ? NULL : "the library";
    for (size_t i = 0; !missing && i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(crypto->library, functions[i].name);
        memcpy((char *)crypto + functions[i].place, &found, sizeof found);
        missing = found ? NULL : functions[i].name;
    }
    if (!missing && crypto->init(no_atexit, NULL))
        return crypto;
    ddl__fail(DDL_EUNSUPPORTED,
              "a secret is set, but libcrypto.so.3, which proves it to others, cannot be used (%s "
              "is missing): install OpenSSL 3 (Debian: libssl3), or set DDL_SECRET= to run without "
              "a secret",
              missing ? missing : "its random generator");
    ddl__crypto_close(crypto);
    return NULL;
}

void ddl__crypto_close(ddl__crypto *crypto)
{
    if (crypto && crypto->library)
        dlclose(crypto->library);
    free(crypto);
}

bool ddl__hmac(const ddl__crypto *crypto, const void *key, size_t key_bytes, const void *bytes,
               size_t n, unsigned char mac[DDL__KEY])
{
    unsigned int length = 0;
    if (key_bytes <= INT_MAX &&
        crypto->hmac(crypto->sha256(), key, (int)key_bytes, bytes, n, mac, &length) &&
        length == DDL__KEY)
        return true;
    memset(mac, 0, DDL__KEY);
    ddl__fail(DDL_ESYSTEM, "libcrypto does not compute HMAC-SHA256");
    return false;
}

bool ddl__equal_secretly(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    unsigned different = 0;
    for (size_t i = 0; i < n; i++)
        different |= x[i] ^ y[i];
    return !different;
}

bool ddl__random(void *bytes, size_t n)
{
    char *at = bytes;
    for (ssize_t k; n; at += k, n -= (size_t)k) {
        k = getrandom(at, n, 0);
        if (k < 0 && errno == EINTR)
            k = 0;
        if (k < 0) {
            ddl__fail(DDL_ESYSTEM, "no random bytes: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

void ddl__forget(void *bytes, size_t n)
{
    explicit_bzero(bytes, n);
}
