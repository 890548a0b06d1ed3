/* SPDX-License-Identifier: Apache-2.0 */
/* Opens libcrypto at run time. Its prototypes are declared in this file, because they have not
 * changed since OpenSSL 1.1.1. */
#include "base/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct evp_md evp_md;           /* EVP_MD */
typedef struct evp_cipher evp_cipher;   /* EVP_CIPHER */
typedef struct evp_context evp_context; /* EVP_CIPHER_CTX */

struct ddl__crypto {
    void *library;
    int (*init)(uint64_t, const void *);
    const evp_md *(*sha256)(void);
    unsigned char *(*hmac)(const evp_md *, const void *, int, const unsigned char *, size_t,
                           unsigned char *, unsigned int *);
    evp_context *(*context_new)(void);
    void (*context_free)(evp_context *);
    int (*context_ctrl)(evp_context *, int, int, void *);
    const evp_cipher *(*aes)(void);
    int (*cipher_init)(evp_context *, const evp_cipher *, void *, const unsigned char *,
                       const unsigned char *, int);
    int (*cipher_update)(evp_context *, unsigned char *, int *, const unsigned char *, int);
    int (*cipher_final)(evp_context *, unsigned char *, int *);
};

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"OPENSSL_init_crypto", offsetof(ddl__crypto, init)},
    {"EVP_sha256", offsetof(ddl__crypto, sha256)},
    {"HMAC", offsetof(ddl__crypto, hmac)},
    {"EVP_CIPHER_CTX_new", offsetof(ddl__crypto, context_new)},
    {"EVP_CIPHER_CTX_free", offsetof(ddl__crypto, context_free)},
    {"EVP_CIPHER_CTX_ctrl", offsetof(ddl__crypto, context_ctrl)},
    {"EVP_aes_256_gcm", offsetof(ddl__crypto, aes)},
    {"EVP_CipherInit_ex", offsetof(ddl__crypto, cipher_init)},
    {"EVP_CipherUpdate", offsetof(ddl__crypto, cipher_update)},
    {"EVP_CipherFinal_ex", offsetof(ddl__crypto, cipher_final)},
};

/* The library of OpenSSL 3, or of 1.1.1 on older systems. */
static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

static void *load_library(void)
{
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

ddl__crypto *ddl__crypto_open(void)
{
    /* OPENSSL_INIT_NO_ATEXIT: no cleanup at exit, because libddl's threads may use libcrypto until
     * the process ends. */
    static const uint64_t no_atexit = 0x00080000;
    ddl__crypto *crypto = calloc(1, sizeof *crypto);
    if (!crypto) {
        ddl__fail(DDL_ENOMEM, "out of memory for libcrypto");
        return NULL;
    }
    crypto->library = load_library();
    const char *missing = crypto->library ? NULL : "the library";
    for (size_t i = 0; !missing && i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(crypto->library, functions[i].name);
        memcpy((char *)crypto + functions[i].place, &found, sizeof found);
        missing = found ? NULL : functions[i].name;
    }
    if (!missing && crypto->init(no_atexit, NULL))
        return crypto;
    ddl__fail(DDL_EUNSUPPORTED,
              "a secret is set, but libcrypto.so.3, which proves it, cannot be used (%s "
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

/* ---------------------------------------------------------------------------------- AES-256-GCM */

enum { GET_TAG = 0x10, SET_TAG = 0x11 }; /* EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG */
enum { SAME_WAY = -1 }; /* argument of cipher_init: keep the direction, encrypt or decrypt */

struct ddl__cipher {
    const ddl__crypto *crypto;
    evp_context *context;
};

ddl__cipher *ddl__cipher_create(const ddl__crypto *crypto, const unsigned char key[DDL__KEY],
                                bool encrypts)
{
    ddl__cipher *cipher = calloc(1, sizeof *cipher);
    evp_context *context = cipher ? crypto->context_new() : NULL;
    if (context && crypto->cipher_init(context, crypto->aes(), NULL, key, NULL, encrypts)) {
        *cipher = (ddl__cipher){crypto, context};
        return cipher;
    }
    crypto->context_free(context);
    free(cipher);
    ddl__fail(DDL_ENOMEM, "libcrypto cannot set up AES-256-GCM: out of memory, or not supported");
    return NULL;
}

void ddl__cipher_destroy(ddl__cipher *cipher)
{
    if (cipher)
        cipher->crypto->context_free(cipher->context);
    free(cipher);
}

bool ddl__cipher_seal(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, const struct iovec *pieces, size_t n, unsigned char *to)
{
    const ddl__crypto *c = cipher->crypto;
    int done;
    bool ok = c->cipher_init(cipher->context, NULL, NULL, NULL, iv, SAME_WAY) &&
              c->cipher_update(cipher->context, NULL, &done, aad, (int)aad_bytes);
    for (size_t i = 0; ok && i < n; i++) {
        ok = c->cipher_update(cipher->context, to, &done, pieces[i].iov_base,
                              (int)pieces[i].iov_len);
        to += pieces[i].iov_len;
    }
    return ok && c->cipher_final(cipher->context, to, &done) &&
           c->context_ctrl(cipher->context, GET_TAG, DDL__TAG, to);
}

bool ddl__cipher_open(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, unsigned char *bytes, size_t n)
{
    const ddl__crypto *c = cipher->crypto;
    int done;
    return c->cipher_init(cipher->context, NULL, NULL, NULL, iv, SAME_WAY) &&
           c->cipher_update(cipher->context, NULL, &done, aad, (int)aad_bytes) &&
           c->cipher_update(cipher->context, bytes, &done, bytes, (int)n) &&
           c->context_ctrl(cipher->context, SET_TAG, DDL__TAG, bytes + n) &&
           c->cipher_final(cipher->context, bytes + n, &done) > 0;
}

/* ---------------------------------------------------------------------------------------- bytes */

bool ddl__equal_constant_time(const void *a, const void *b, size_t n)
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
            ddl__fail(DDL_ESYSTEM, "cannot get random bytes: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

void ddl__erase_secret(void *bytes, size_t n)
{
    explicit_bzero(bytes, n);
}
