/* SPDX-License-Identifier: Apache-2.0 */
/* crypto.h - the functions that libddl uses from OpenSSL's libcrypto. libcrypto is opened at run
 * time, only if the job has a secret. Builds do not need its headers, and jobs without a secret do
 * not need libcrypto. */
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

/* Open libcrypto, which then stays loaded. Returns NULL on failure, with a message that names the
 * package to install. */
ddl__crypto *ddl__crypto_open(void);
void ddl__crypto_close(ddl__crypto *crypto);

/* Compute the HMAC-SHA256 of n bytes. Return false with the message set if libcrypto fails. */
bool ddl__hmac(const ddl__crypto *crypto, const void *key, size_t key_bytes, const void *bytes,
               size_t n, unsigned char mac[DDL__KEY]);

/* AES-256-GCM in one direction, with its own key. ddl__cipher_create returns NULL with the message
 * set on failure. */
typedef struct ddl__cipher ddl__cipher;
ddl__cipher *ddl__cipher_create(const ddl__crypto *crypto, const unsigned char key[DDL__KEY],
                                bool encrypts);
void ddl__cipher_destroy(ddl__cipher *cipher);

/* Encrypt the pieces into `to`, and append the tag, which also authenticates `aad`. Each iv must be
 * used only once. Return false if libcrypto fails. */
bool ddl__cipher_seal(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, const struct iovec *pieces, size_t n, unsigned char *to);

/* Decrypt n bytes in place; the tag follows them. Return false if the bytes or `aad` were
 * altered. */
bool ddl__cipher_open(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, unsigned char *bytes, size_t n);

/* Compare n bytes in constant time. */
bool ddl__equal_constant_time(const void *a, const void *b, size_t n);

/* Generate random bytes for keys and ids. Return false with the message set on failure. */
bool ddl__random(void *bytes, size_t n);

/* Overwrite bytes that must not stay in memory. */
void ddl__erase_secret(void *bytes, size_t n);

#endif
