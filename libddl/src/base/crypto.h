/* crypto.h - what is used of OpenSSL's libcrypto. It is opened at run time, by who has a secret, so
 * that neither its headers nor, without a secret, the library itself are needed. */
#ifndef DDL_BASE_CRYPTO_H
#define DDL_BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "base/status.h"

enum {
    DDL__KEY = 32, /* bytes of a key, and of an HMAC-SHA256 */
    DDL__TAG = 16, /* that AES-GCM adds */
    DDL__IV = 12
};

typedef struct ddl__crypto ddl__crypto;

/* NULL with the message set, which says what to install. Once loaded, libcrypto stays. */
ddl__crypto *ddl__crypto_open(void);
void ddl__crypto_close(ddl__crypto *crypto);

/* The HMAC-SHA256 of n bytes; false with the message set when libcrypto fails. */
bool ddl__hmac(const ddl__crypto *crypto, const void *key, size_t key_bytes, const void *bytes,
               size_t n, unsigned char mac[DDL__KEY]);

/* AES-256-GCM one way, under a key of its own. NULL with the message set. */
typedef struct ddl__cipher ddl__cipher;
ddl__cipher *ddl__cipher_create(const ddl__crypto *crypto, const unsigned char key[DDL__KEY],
                                bool encrypts);
void ddl__cipher_destroy(ddl__cipher *cipher);

/* Encrypt the pieces to `to`, the tag behind them; `open` is vouched for as well, and stays
 * readable. An iv is used once. False when libcrypto fails. */
bool ddl__cipher_seal(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, const struct iovec *pieces, size_t n, unsigned char *to);

/* Decrypt n bytes, and the tag behind them, to where they are; false when they were altered. */
bool ddl__cipher_open(ddl__cipher *cipher, const unsigned char iv[DDL__IV], const void *aad,
                      size_t aad_bytes, unsigned char *bytes, size_t n);

/* Whether n bytes are equal, in a time that does not tell where they differ. */
bool ddl__equal_constant_time(const void *a, const void *b, size_t n);

/* Bytes that nobody can guess; false with the message set. */
bool ddl__random(void *bytes, size_t n);

/* Overwrite what must not stay in memory. */
void ddl__erase_secret(void *bytes, size_t n);

#endif
