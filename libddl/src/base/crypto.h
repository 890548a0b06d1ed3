/* SPDX-License-Identifier: Apache-2.0 */
/* crypto.h - the functions of OpenSSL's libcrypto that are used. The library is opened at run time,
 * and only if the job has a secret. A build does not need its headers, and a job without a secret
 * does not need the library. */
#ifndef DDL_BASE_CRYPTO_H
#define DDL_BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "base/status.h"

enum {
    DDL__KEY = 32, /* bytes of a key, and of an HMAC-SHA256 */
    DDL__TAG = 16, /* bytes of an AES-GCM tag */
    DDL__IV = 12
};

typedef struct ddl__crypto ddl__crypto;

/* Open libcrypto. Return NULL with the message set, which names the package to install. libcrypto
 * stays loaded. */
ddl__crypto *ddl__crypto_open(void);
void ddl__crypto_close(ddl__crypto *crypto);

/* Compute the HMAC-SHA256 of n bytes. Return false with the message set if libcrypto fails. */
bool ddl__hmac(const ddl__crypto *crypto, const void *key, size_t key_bytes, const void *bytes,
               size_t n, unsigned char mac[DDL__KEY]);

/* AES-256-GCM in one direction under its own key. ddl__cipher_create returns NULL with the message
 * set on failure. */
typedef struct ddl__cipher ddl__cipher;
ddl__cipher *ddl__cipher_create(const ddl__crypto *crypto, const unsigned char key[DDL__KEY],
                                bool encrypts);
void ddl__cipher_destroy(ddl__cipher *cipher);

/* Encrypt the pieces to `to`, followed by the tag, which also authenticates `aad`. Each iv must be
 * used only once. Return false if libcrypto fails. */
bool ddl__cipher_seal(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, const struct iovec *pieces, size_t n, unsigned char *to);

/* Decrypt n bytes in place; the tag follows them. Return false if they or `aad` were altered. */
bool ddl__cipher_open(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, unsigned char *bytes, size_t n);

/* Compare n bytes in constant time. */
bool ddl__equal_constant_time(const void *a, const void *b, size_t n);

/* Get random bytes for keys and ids. Return false with the message set on failure. */
bool ddl__random(void *bytes, size_t n);

/* Overwrite bytes that must not stay in memory. */
void ddl__erase_secret(void *bytes, size_t n);

#endif
